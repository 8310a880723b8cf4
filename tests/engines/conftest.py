"""Fixtures with tiny random checkpoints and engines that run them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_harness import END, VOCAB, Harness
from ggufs import write_gguf
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen2Config,
    Qwen2MoeConfig,
)

from tandem.engines.torch.engine import TorchEngine
from tandem.engines.torch.settings import TorchSettings

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
SPREAD = {"vocab_size": VOCAB, "initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": END}

CONFIGS = {
    "llama": LlamaConfig(
        **SIZES, **SPREAD, num_key_value_heads=2, intermediate_size=96, max_position_embeddings=512
    ),
    "gpt2": GPT2Config(n_embd=48, n_layer=3, n_head=4, n_positions=512, **SPREAD),
    "qwen2": Qwen2Config(
        **SIZES, **SPREAD, num_key_value_heads=2, intermediate_size=96, max_position_embeddings=512
    ),
    "mistral": MistralConfig(
        **SIZES,
        **SPREAD,
        num_key_value_heads=4,
        intermediate_size=96,
        max_position_embeddings=512,
        sliding_window=16,
    ),
    "phi3": Phi3Config(
        **SIZES,
        **SPREAD,
        pad_token_id=0,
        num_key_value_heads=2,
        intermediate_size=96,
        max_position_embeddings=512,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 6,
            "long_factor": [4.0] * 6,
        },
    ),
    # Transformers applies their windows only in its own mask.
    "phimoe": PhimoeConfig(
        **SIZES,
        **SPREAD,
        num_key_value_heads=2,
        intermediate_size=96,
        num_local_experts=2,
        sliding_window=64,
    ),
    "qwen2_moe": Qwen2MoeConfig(
        **SIZES,
        **SPREAD,
        num_key_value_heads=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=2,
        num_experts_per_tok=1,
        use_sliding_window=True,
        sliding_window=64,
    ),
    # Transformers ignores a window in the configuration of these models.
    "llama-window": LlamaConfig(**SIZES, **SPREAD, intermediate_size=96, sliding_window=64),
    "llama-mlp-bias": LlamaConfig(**SIZES, **SPREAD, intermediate_size=96, mlp_bias=True),
    "bloom": BloomConfig(hidden_size=48, n_layer=2, n_head=4, **SPREAD),
    "falcon": FalconConfig(**SIZES, **SPREAD),
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory) -> dict[str, Path]:
    """Folders with random checkpoints, by architecture."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name, config in CONFIGS.items():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(root / name)
    return {name: root / name for name in CONFIGS}


@pytest.fixture(scope="session")
def make_harness(checkpoints):
    """Return a function that starts an engine on a random checkpoint.

    All engines are closed at the end.
    """
    made = []

    def make(name="llama", **settings) -> Harness:
        defaults = {
            "max_seq_len": 256,
            "kv_cache_tokens": 4096,
            "kv_block_tokens": 8,
            "max_draft_len": 8,
            "threads": 1,
        }
        engine = TorchEngine(
            TorchSettings(checkpoint=str(checkpoints[name]), **{**defaults, **settings}), Path()
        )
        made.append(engine)
        return Harness(engine)

    yield make
    for engine in made:
        engine.close()


@pytest.fixture(scope="session")
def gguf_folder(tmp_path_factory) -> Path:
    """A folder with a random GGUF file."""
    pytest.importorskip("gguf", reason="no gguf: the extra 'gguf'")
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "model.gguf", seed=7, vocab=VOCAB)
    return folder


@pytest.fixture(scope="session")
def make_llamacpp(gguf_folder):
    """Return a function that starts a llamacpp engine. All engines are closed at the end."""
    pytest.importorskip("xllamacpp", reason="no xllamacpp: the extra 'gguf'")
    from tandem.engines.llamacpp.engine import LlamaCppEngine
    from tandem.engines.llamacpp.settings import LlamaCppSettings

    made = []

    def make(**settings) -> Harness:
        defaults = {
            "checkpoint": str(gguf_folder),
            "max_seq_len": 256,
            "kv_cache_tokens": 4096,
            "kv_block_tokens": 8,
            "max_draft_len": 8,
            "threads": 1,
        }
        engine = LlamaCppEngine(LlamaCppSettings(**{**defaults, **settings}), Path())
        made.append(engine)
        return Harness(engine)

    yield make
    for engine in made:
        engine.close()


@pytest.fixture(scope="session")
def llama(make_harness) -> Harness:
    """A Llama engine, shared by tests that don't affect each other."""
    return make_harness("llama")


@pytest.fixture(scope="session")
def reference(checkpoints):
    """Return a function that loads an architecture's checkpoint with transformers."""
    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = AutoModelForCausalLM.from_pretrained(checkpoints[name]).eval()
        return loaded[name]

    return get
