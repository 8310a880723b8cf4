"""Read the files of checkpoints and of LoRA adapters in peft's format, without PyTorch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tandem.engines.errors import LoadError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
# Options of peft that change more than the product of A and B, and the values that turn them off.
UNSUPPORTED = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (None, False),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
}
# Memory of the cache, as a multiple of its tokens' size, because entries have room to
# grow. A CPU uses physical memory only for pages that are written.
GROWTH = 2
# Names of the same setting in different architectures
LAYERS = ("num_hidden_layers", "n_layer")
HEADS = ("num_attention_heads", "n_head")
WIDTH = ("hidden_size", "n_embd")

# Files of weights that a checkpoint's JSON may name, all in its own folder
SAFE_FILE = re.compile(r"[^/\\]+\.safetensors(\.index\.json)?")
PICKLES = re.compile(r".+\.(bin|pt|pth|ckpt)")


def require_safetensors(folder: Path) -> None:
    """Raise LoadError unless a checkpoint's weights are safetensors files in its folder.

    Otherwise, transformers and TensorRT-LLM would load pickle files. So would transformers if an
    index or the configuration names one.
    """
    named: set[str] = set()

    def collect(part: dict[str, Any]) -> dict[str, Any]:
        files = part.get("weight_map")
        named.update(map(str, files.values() if isinstance(files, dict) else ()))
        if (file := part.get("transformers_weights")) is not None:
            named.add(str(file))
        return part

    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors.index.json"))):
        try:
            json.loads(path.read_text(), object_hook=collect)
        except (OSError, ValueError, RecursionError) as error:
            raise LoadError(f"{path} can't be read: {error}") from error
    for name in sorted(named):
        if not SAFE_FILE.fullmatch(name):
            raise LoadError(f"{folder} names {name!r}, which isn't a safetensors file in it")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(file.name for file in folder.iterdir() if PICKLES.fullmatch(file.name))
        hint = "".join(
            f"; {name} is a pickle file, which can run code: if you trust it, convert it with "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
            for name in pickled[:1]
        )
        raise LoadError(f"{folder} has no weights (*.safetensors){hint}")


def read_adapter_config(folder: Path) -> Mapping[str, Any]:
    """Return an adapter's configuration.

    Raises LoadError if a file is missing, or if the adapter does more than add low-rank matrices.
    """
    try:
        config = json.loads((folder / CONFIG_FILE).read_text())
        (folder / WEIGHTS_FILE).stat()
    except (OSError, ValueError) as error:
        raise LoadError(f"LoRA adapter '{folder}': can't be read: {error}") from error
    if not isinstance(config, Mapping) or config.get("peft_type") != "LORA":
        raise LoadError(f"LoRA adapter '{folder}': peft_type must be LORA in {CONFIG_FILE}")
    for name, without_effect in UNSUPPORTED.items():
        if config.get(name) not in without_effect:
            raise LoadError(f"LoRA adapter '{folder}': {name} {config[name]!r} isn't supported")
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, Mapping):
        raise LoadError(f"LoRA adapter '{folder}': alpha_pattern must map patterns to numbers")
    for name, alpha in [("lora_alpha", config.get("lora_alpha", 8)), *patterns.items()]:
        if not isinstance(alpha, int | float):
            raise LoadError(f"LoRA adapter '{folder}': {name} must be a number; got {alpha!r}")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise LoadError(
                f"LoRA adapter '{folder}': alpha_pattern {pattern!r} isn't a regular expression: "
                f"{error}"
            ) from error
    return config


def uniform_rank(folder: Path, engine: str) -> int:
    """Return an adapter's rank, for an engine that uses one rank and one scale for all layers.

    engine: its name in errors. Raises LoadError.
    """
    config = read_adapter_config(folder)
    for name in ("rank_pattern", "alpha_pattern"):
        if config.get(name):
            raise LoadError(f"LoRA adapter '{folder}': {name} isn't supported by {engine}")
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        raise LoadError(f"LoRA adapter '{folder}': r must be at least 1; got {rank!r}")
    return rank


def kv_bytes_per_token(setting: Callable[[str], Any], item_bytes: int) -> int:
    """Return the bytes of one token's keys and values, or 0 if the configuration lacks sizes.

    setting: returns the value of a key in config.json, or None. item_bytes: bytes per number.
    """
    layers, heads, width = (
        next((value for name in names if (value := setting(name)) is not None), 0)
        for names in (LAYERS, HEADS, WIDTH)
    )
    size = setting("head_dim") or (width // heads if heads else 0)
    kv_heads = setting("num_key_value_heads") or heads
    return int(2 * layers * kv_heads * size * item_bytes)
