"""A vLLM engine with a random checkpoint, for the tests of `make test-vllm`."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from engine_harness import END, VOCAB, Harness
from paths import ROOT
from transformers import AutoModelForCausalLM, LlamaConfig

from tandem.engines.vllm.engine import VllmEngine
from tandem.engines.vllm.settings import VllmSettings

PYTHON = os.environ.get("TANDEM_VLLM_PYTHON", str(ROOT / ".venv" / "vllm" / "bin" / "python"))


def write_checkpoint(folder: Path) -> None:
    """Write a random Llama with a head size that vLLM's CPU kernels support."""
    config = LlamaConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=192,
        max_position_embeddings=512,
        vocab_size=VOCAB,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=END,
    )
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def start_vllm(folder: Path, **settings) -> Harness:
    write_checkpoint(folder)
    defaults = {
        "model": str(folder),
        "vocab_size": VOCAB,
        "max_seq_len": 256,
        "kv_cache_tokens": 8192,
        "max_draft_len": 8,
        "dtype": "float32",
        "enforce_eager": True,
        "threads": 1,
        "python": PYTHON,
    }
    return Harness(VllmEngine(VllmSettings(**{**defaults, **settings})))
