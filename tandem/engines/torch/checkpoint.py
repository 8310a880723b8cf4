"""Load a Hugging Face checkpoint for `PackedModel`.

The checks are for what `tandem` can't see in the JSON files: damaged or missing weights, the
memory, and the limits of the configuration as transformers completes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
)
from transformers.utils import logging

from tandem.engines.checkpoint_files import GROWTH, kv_bytes_per_token, require_safetensors
from tandem.engines.errors import LoadError, typed_line
from tandem.engines.torch import attention
from tandem.engines.torch.settings import TorchSettings

GIB = 2**30

AttentionInterface.register(attention.NAME, attention.packed_attention)
AttentionInterface.register(attention.SHAPES_NAME, attention.record_shapes)
AttentionMaskInterface.register(attention.SHAPES_NAME, attention.window_as_mask)


def load_checkpoint(settings: TorchSettings, path: Path) -> Any:
    """Return transformers' causal LM with all of its weights. Raises LoadError."""
    if not (path / "config.json").is_file():
        raise LoadError(f"{settings.checkpoint}/config.json doesn't exist")
    require_safetensors(path)
    _require_complete_files(path)
    device = device_of(settings.device)
    dtype = dtype_of(settings.dtype, device)
    logging.disable_progress_bar()  # it would go to the log
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        # For `auto`, transformers uses the checkpoint's own dtype.
        known = dtype if isinstance(dtype, torch.dtype) else config.dtype or torch.float32
        require_memory(config, settings, device, known)
        result: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are reported below
        )
    except LoadError:
        raise
    except Exception as error:  # transformers raises many types for an invalid config
        raise LoadError(f"can't load the checkpoint: {typed_line(error)}") from error
    model, loaded = result
    _require_all_weights(loaded)
    text_config = model.config.get_text_config()
    limit = "max_position_embeddings"
    longest = getattr(text_config, limit, None)
    rope = getattr(text_config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # If one text of a pass is longer, LongRoPE rotates all positions of the pass differently,
        # which doesn't match the cached keys.
        limit = "original_max_position_embeddings"
        longest = rope[limit]
    if longest is not None and settings.max_seq_len > longest:
        raise LoadError(
            f"max_seq_len must be at most {longest}, the checkpoint's {limit}; "
            f"got {settings.max_seq_len}"
        )
    return model.to(device).eval().requires_grad_(False)


def _require_complete_files(path: Path) -> None:
    """Raise LoadError if a file of weights can't be read or is cut off."""
    # `tandem up` renders links, so resolve them to name the user's own file.
    for file in sorted(file.resolve() for file in path.glob("*.safetensors")):
        try:
            safe_open(file, "pt")  # reads only the header, which has the size of the file
        except (SafetensorError, OSError) as error:
            raise LoadError(
                f"can't read {file}: {error}; download it again, or run git lfs pull in a git clone"
            ) from error


def _require_all_weights(loaded: Mapping[str, Any]) -> None:
    """Raise LoadError if transformers has initialized some weights with random numbers.

    loaded: which keys of the checkpoint are missing or have the wrong shape.
    """
    missing = sorted(loaded["missing_keys"])
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise LoadError(
            f"the checkpoint lacks weights that its config.json requires: {missing[0]}{others}; "
            "download it again"
        )
    for name, found, wanted in sorted(loaded["mismatched_keys"]):
        raise LoadError(
            f"the checkpoint's config.json requires {name} of shape {list(wanted)}; got "
            f"{list(found)}; download it again"
        )


def device_of(name: str) -> torch.device:
    """Return the device that a setting names. Raises LoadError."""
    found = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if found else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise LoadError(f"device must be cpu, cuda, cuda:N or auto; got '{name}'") from error
    if device.type not in {"cpu", "cuda"}:
        raise LoadError(f"device must be cpu, cuda, cuda:N or auto; got '{name}'")
    if device.type == "cuda" and not found:
        raise LoadError(
            f"device '{name}' isn't available: PyTorch finds no CUDA device; use cpu or auto"
        )
    if device.type == "cuda" and (device.index or 0) >= found:
        raise LoadError(
            f"device '{name}' isn't available; PyTorch finds "
            f"{', '.join(f'cuda:{n}' for n in range(found))}"
        )
    return device


def dtype_of(name: str, device: torch.device) -> torch.dtype | str:
    """Return the dtype that a setting names; `auto`: the checkpoint's. Raises LoadError."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise LoadError(f"dtype must be {', '.join(known)} or auto; got '{name}'")
    return known[name]


def require_memory(
    config: Any, settings: TorchSettings, device: torch.device, dtype: torch.dtype
) -> None:
    """Raise LoadError if the checkpoint of this config doesn't fit. A CPU has no limit.

    Weights and KV cache must fit into `gpu_memory_fraction` of the GPU's memory. Memory that other
    processes use counts against the fraction. The rest is for the steps themselves.
    """
    if device.type != "cuda":
        return
    weights, cache = weight_bytes(config, dtype), cache_bytes(config, settings, dtype)
    free, total = torch.cuda.mem_get_info(device)
    fraction = settings.gpu_memory_fraction
    room = max(0, int(fraction * total) - (total - free))
    if weights + cache > room:
        raise LoadError(
            f"weights ({weights / GIB:.1f} GiB) and KV cache ({cache / GIB:.1f} GiB) exceed the "
            f"{room / GIB:.1f} GiB available (gpu_memory_fraction {fraction:g} of "
            f"{total / GIB:.1f} GiB, minus memory in use); lower kv_cache_tokens, or use a smaller "
            "dtype or checkpoint"
        )


def weight_bytes(config: Any, dtype: torch.dtype) -> int:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    weights: int = sum(weight.numel() for weight in model.parameters())
    return dtype.itemsize * weights


def cache_bytes(config: Any, settings: TorchSettings, dtype: torch.dtype) -> int:
    text = config.get_text_config()
    per_token = kv_bytes_per_token(lambda name: getattr(text, name, None), dtype.itemsize)
    return per_token * settings.kv_cache_tokens * GROWTH
