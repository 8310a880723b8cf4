"""Reads the arguments of NVIDIA's `run.py`: configuration strings and the folders of engines.

``[4,[0],[1],True]``   draft_len, draft devices, target devices, use_logits
``[10,2,[0]]``         prompt_lookup_num_tokens, max_matching_ngram_size, devices
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_json
from tandem.tools.profiles.profile import explain

Devices = list[NonNegativeInt]
SomeDevices = Annotated[Devices, Field(min_length=1)]


class DraftTargetConfig(NamedTuple):
    """A draft model and a target.

    use_logits: accept draft tokens by the ratio of probabilities instead of comparing token ids.
    """

    draft_len: PositiveInt
    draft_devices: SomeDevices
    target_devices: SomeDevices
    use_logits: bool


class PromptLookupConfig(NamedTuple):
    """Prompt lookup, on the devices of the target."""

    prompt_lookup_num_tokens: PositiveInt
    max_matching_ngram_size: PositiveInt
    devices: SomeDevices


Config = TypeVar("Config", DraftTargetConfig, PromptLookupConfig)
EXAMPLES = {DraftTargetConfig: "[4,[0],[1],True]", PromptLookupConfig: "[10,2,[0]]"}


def parse(kind: type[Config], text: str) -> Config:
    """Parse a string with one item per field of ``kind``. Raises TandemError."""
    names = kind._fields
    try:
        parts = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        parts = None
    if not isinstance(parts, list) or len(parts) != len(names):
        raise TandemError(
            f'must have the form [{", ".join(names)}]; got {text!r}; example: "{EXAMPLES[kind]}"'
        )
    try:
        return TypeAdapter(kind).validate_python(parts, strict=True)
    except ValidationError as error:
        key_path, reason = explain(error)
        name = names[int(key_path[0])]
        raise TandemError(f'{name} {reason}; example: "{EXAMPLES[kind]}"') from error


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
