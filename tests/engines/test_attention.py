"""Chunked attention equals full attention and limits the size of masks."""

from __future__ import annotations

import pytest
import torch
from engine_harness import prompt

from tandem.engines.stepping.kv_cache import Segment
from tandem.engines.torch import attention
from tandem.engines.torch.attention import KVShape, SegmentAttention, TensorEntry, attend

HEADS, KV_HEADS, SIZE = 4, 2, 8
SHAPE = KVShape(((KV_HEADS, SIZE, SIZE),), torch.float32, torch.device("cpu"))


def attended(start, count, window, seed=1):
    """Compute the attention of `count` tokens after `start` tokens; return it and its masks."""
    generator = torch.Generator().manual_seed(seed)
    entry = TensorEntry(length=start)
    entry.resize(SHAPE, start + count)
    for tensor in entry.layers[0]:
        tensor.normal_(generator=generator)
    segment = SegmentAttention(Segment(entry, count, 1))
    shapes = [(1, heads, count, SIZE) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    qkv = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    return attend([segment], 0, qkv, None, window), segment._masks


@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 30), (17, 1), (17, 30), (60, 9)])
def test_chunked_attention_equals_full_attention(monkeypatch, start, count, window):
    whole, _ = attended(start, count, window)
    for values in (1, 150, 500, 1000):
        monkeypatch.setattr(attention, "MASK_VALUES", values)
        parts, masks = attended(start, count, window)
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
        least = (HEADS // KV_HEADS) * (start + count)  # mask values for one token
        assert all(mask.numel() <= max(values, least) for mask in masks.values())
        assert len(masks) <= 2  # chunks share a mask, except a shorter last chunk


def test_chunked_attention_does_not_change_the_output(llama, make_harness, monkeypatch):
    ids = prompt(31, 120)
    want = llama.tokens(ids, 20)
    monkeypatch.setattr(attention, "MASK_VALUES", 700)
    assert make_harness("llama").tokens(ids, 20) == want
