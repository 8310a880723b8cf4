"""Whether a model and its KV cache fit into a GPU's memory, said before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tandem.engines.errors import LoadError
from tandem.engines.torch.settings import UNPAGED_GROWTH, TorchSettings

GIB = 2**30


def require_memory(
    config: Any,
    settings: TorchSettings,
    device: torch.device,
    dtype: torch.dtype,
    read: Callable[[torch.device], tuple[int, int]] = torch.cuda.mem_get_info,
) -> None:
    """Raise LoadError where the checkpoint of this config would not fit; a CPU has no limit.

    Weights and KV cache count. Room for the steps themselves is what `gpu_memory_fraction` leaves.

    read: tells how many bytes of a device are free, and how many there are.
    """
    if device.type != "cuda":
        return
    weights, cache = weight_bytes(config, dtype), cache_bytes(config, settings, dtype)
    free, total = read(device)
    check_fit(weights, cache, free=free, total=total, fraction=settings.gpu_memory_fraction)


def check_fit(weights: int, cache: int, *, free: int, total: int, fraction: float) -> None:
    """Raise LoadError where so many bytes would take more than a fraction of a GPU's memory.

    free, total: bytes; what others hold already counts too.
    """
    room = max(0, int(fraction * total) - (total - free))
    if weights + cache > room:
        raise LoadError(
            f"weights ({weights / GIB:.1f} GiB) and KV cache ({cache / GIB:.1f} GiB) do not fit "
            f"into the {room / GIB:.1f} GiB that gpu_memory_fraction {fraction:g} leaves of "
            f"{total / GIB:.1f} GiB; lower kv_cache_tokens, or use a smaller dtype or checkpoint"
        )


def weight_bytes(config: Any, dtype: torch.dtype) -> int:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    weights: int = sum(weight.numel() for weight in model.parameters())
    return dtype.itemsize * weights


def cache_bytes(config: Any, settings: TorchSettings, dtype: torch.dtype) -> int:
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    per_token = 2 * text.num_hidden_layers * heads * size * dtype.itemsize
    growth = 1 if settings.paged_kv_cache else UNPAGED_GROWTH
    return int(per_token * settings.kv_cache_tokens * growth)
