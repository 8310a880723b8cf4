"""Estimate the size of a KV cache from a checkpoint's configuration, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Memory of the cache, as a multiple of its tokens' size, because entries have room to
# grow. A CPU uses physical memory only for pages that are written.
GROWTH = 2
# Names of the same setting in different architectures
LAYERS = ("num_hidden_layers", "n_layer")
HEADS = ("num_attention_heads", "n_head")
WIDTH = ("hidden_size", "n_embd")


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
