"""Reads the folder in `--engine-dir`: a checkpoint or a built TensorRT engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_json

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


def engine_section(folder: Path, devices: Sequence[int], *, verifies: bool) -> dict[str, Any]:
    """Return the section of a profile for the engine in a folder.

    devices: numbers of its GPUs; empty: the first ones. verifies: the engine is the target. Raises
    TandemError.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise TandemError(
            f"{folder} has neither a Hugging Face checkpoint nor a built engine: no config.json"
        )
    config, absolute = read_json(path), str(folder.absolute())
    if not any(section in config for section in BUILT):
        device = f"cuda:{devices[0]}" if devices else "auto"
        return {"kind": "torch", "checkpoint": absolute, "device": device}
    built = {  # each name is in only one of these sections
        **_section(config, "pretrained_config"),
        **_section(config, "pretrained_config", "mapping"),
        **_section(config, "build_config"),
        **_section(config, "build_config", "plugin_config"),
    }
    build = {name: built[name] for name in DECISIVE if built.get(name) is not None}
    if verifies:
        external = built.get("speculative_decoding_mode") in EXTERNAL_DRAFTS
        build["max_draft_len"] = built.get("max_draft_len", 0) if external else 0
        mode = "draft_tokens_external" if build["max_draft_len"] else None
        build["speculative_decoding_mode"] = mode
    tp_size, pp_size = built.get("tp_size", 1), built.get("pp_size", 1)
    if not (isinstance(tp_size, int) and isinstance(pp_size, int)):
        raise TandemError(f"tp_size and pp_size in {path} must be integers")
    return {
        "kind": "tensorrtllm",
        "checkpoint": absolute,
        "engine_dir": absolute,
        "tp_size": tp_size,
        "pp_size": pp_size,
        "device_ids": list(devices or range(tp_size * pp_size)),
        "build": build,
        # Prompts are answered one by one, so the KV cache needs to hold only one whole sequence.
        "run": {"max_tokens_in_paged_kv_cache": build.get("max_seq_len")},
    }


def _section(config: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config if isinstance(config, dict) else {}
