"""A model that doesn't fit into GPU memory is rejected before loading."""

import numpy as np
import pytest
import torch
from engine_harness import VOCAB
from transformers import LlamaConfig

from tandem.engines.checkpoint_files import GROWTH
from tandem.engines.errors import LoadError
from tandem.engines.torch import checkpoint
from tandem.engines.torch.attention import KVShape, TensorKVCache
from tandem.engines.torch.checkpoint import (
    GIB,
    cache_bytes,
    device_of,
    require_memory,
    weight_bytes,
)
from tandem.engines.torch.settings import TorchSettings

CONFIG = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)
SETTINGS = TorchSettings("x", max_seq_len=100, kv_cache_tokens=1000)


def test_the_size_of_weights_depends_on_the_loaded_type(reference):
    weights = sum(weight.numel() for weight in reference("llama").parameters())
    assert weight_bytes(CONFIG, torch.bfloat16) == 2 * weights
    assert weight_bytes(CONFIG, torch.float32) == 4 * weights


def test_the_cache_stays_within_its_estimated_memory():
    """Entries grow for random texts, but never beyond the estimate."""
    block, most = 8, 1024
    cache = TensorKVCache(
        KVShape(((2, 4, 4),), torch.float32, torch.device("cpu")), most, block, 256
    )
    random, largest = np.random.default_rng(1), 0
    for _ in range(300):
        tokens = random.integers(0, VOCAB, random.integers(1, 200))
        entry = cache.acquire(tokens, len(tokens) - 1, len(tokens) + random.integers(1, 56))
        entry.length = len(tokens)
        cache.release(entry)
        largest = max(largest, sum(held.capacity for held in cache._entries))
    assert most < largest <= GROWTH * most


def test_memory_used_by_other_processes_is_not_available(monkeypatch):
    def check(weights, cache, free):
        monkeypatch.setattr(checkpoint, "weight_bytes", lambda *_: weights * GIB)
        monkeypatch.setattr(checkpoint, "cache_bytes", lambda *_: cache * GIB)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free * GIB, 80 * GIB))
        require_memory(CONFIG, SETTINGS, torch.device("cuda"), torch.bfloat16)

    check(60, 9, free=80)
    check(50, 2, free=60)
    with pytest.raises(LoadError, match=r"60\.0 GiB.*\(9\.0 GiB.*the 62\.0 GiB .*0\.9.* 80\.0 GiB"):
        check(60, 9, free=70)
    with pytest.raises(LoadError, match=r"the 0\.0 GiB"):
        check(1, 1, free=0)


def test_each_engine_is_checked_against_the_memory_of_its_own_gpu(monkeypatch):
    weights, cache = (
        weight_bytes(CONFIG, torch.bfloat16),
        cache_bytes(CONFIG, SETTINGS, torch.bfloat16),
    )
    needed = weights + cache
    free = {0: needed - 1, 1: needed}
    asked = []

    def read(device):
        asked.append(device.index)
        return free[device.index], needed

    monkeypatch.setattr(torch.cuda, "mem_get_info", read)
    whole = TorchSettings("x", max_seq_len=100, kv_cache_tokens=1000, gpu_memory_fraction=1.0)
    require_memory(CONFIG, whole, torch.device("cuda:1"), torch.bfloat16)
    with pytest.raises(LoadError, match="exceed the "):
        require_memory(CONFIG, whole, torch.device("cuda:0"), torch.bfloat16)
    with pytest.raises(LoadError, match=r"gpu_memory_fraction 0\.9 of"):
        require_memory(CONFIG, SETTINGS, torch.device("cuda:1"), torch.bfloat16)
    assert asked == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "gpus", "found"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda"),
        ("cuda:0", 1, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_device_names_are_resolved(monkeypatch, name, gpus, found):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert device_of(name) == torch.device(found)


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        ("cuda", 0, "'cuda' isn't available: PyTorch finds no CUDA device; use cpu or auto"),
        ("cuda:1", 0, "'cuda:1' isn't available: PyTorch finds no CUDA device"),
        ("cuda:1", 1, "'cuda:1' isn't available; PyTorch finds cuda:0$"),
        ("cuda:2", 2, "'cuda:2' isn't available; PyTorch finds cuda:0, cuda:1$"),
        ("gpu", 2, "must be cpu, cuda, cuda:N or auto; got 'gpu'"),
        ("meta", 2, "must be cpu, cuda, cuda:N or auto; got 'meta'"),
    ],
)
def test_a_missing_device_is_rejected(monkeypatch, name, gpus, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(LoadError, match=message):
        device_of(name)


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.1])
def test_a_memory_fraction_out_of_bounds_is_rejected(fraction):
    with pytest.raises(LoadError, match="gpu_memory_fraction must be"):
        TorchSettings("x", max_seq_len=9, kv_cache_tokens=99, gpu_memory_fraction=fraction)
