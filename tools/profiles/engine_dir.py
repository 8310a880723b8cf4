"""Reads the folder in `--engine-dir`: a checkpoint or a built TensorRT engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_json
from tandem.tools.profiles.engines.torch import TorchTarget

BUILT = ("pretrained_config", "build_config")  # sections that `trtllm-build` writes
DECISIVE = (
    "max_batch_size",
    "max_seq_len",
    "max_num_tokens",
    "use_paged_context_fmha",
    "tokens_per_block",
    "logits_dtype",
    "gather_generation_logits",
)
EXTERNAL_DRAFTS = (None, 2, "DRAFT_TOKENS_EXTERNAL", "draft_tokens_external")  # spellings of a mode
TORCH_DRAFT_LEN = int(TorchTarget.model_fields["max_draft_len"].default)


@dataclass(frozen=True)
class EngineDir:
    """A folder and the kind of engine that serves it.

    tp_size, pp_size: tensor and pipeline parallelism; the engine needs tp_size * pp_size devices.
    max_draft_len: the longest draft in tokens that the engine verifies. build: settings of a built
    engine, by the names of trtllm-build's flags.
    """

    folder: Path
    kind: Literal["torch", "tensorrtllm"]
    tp_size: int
    max_draft_len: int
    pp_size: int = 1
    build: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gathers_logits(self) -> bool:
        return self.kind == "torch" or bool(self.build.get("gather_generation_logits"))


def read_engine_dir(folder: Path) -> EngineDir:
    path = folder / "config.json"
    if not path.is_file():
        raise TandemError(
            f"{folder} has neither a Hugging Face checkpoint nor a built engine: no config.json"
        )
    config = read_json(path)
    if not any(section in config for section in BUILT):
        return EngineDir(folder, "torch", tp_size=1, max_draft_len=TORCH_DRAFT_LEN)
    mapping = _section(config, "pretrained_config", "mapping")
    built = {  # each name is in only one of these sections
        **_section(config, "pretrained_config"),
        **_section(config, "build_config"),
        **_section(config, "build_config", "plugin_config"),
    }
    verifies_drafts = built.get("speculative_decoding_mode") in EXTERNAL_DRAFTS
    return EngineDir(
        folder,
        "tensorrtllm",
        tp_size=mapping.get("tp_size", 1),
        pp_size=mapping.get("pp_size", 1),
        max_draft_len=built.get("max_draft_len", 0) if verifies_drafts else 0,
        build={name: built[name] for name in DECISIVE if built.get(name) is not None},
    )


def _section(config: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config if isinstance(config, dict) else {}
