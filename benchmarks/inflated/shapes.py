"""The shapes to which a checkpoint can be inflated."""

from __future__ import annotations

from typing import NamedTuple


class LlamaShape(NamedTuple):
    """Sizes of a Llama model, named as in its config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool


# All published shapes have Llama 3's vocabulary. The other sizes of 32b are Qwen 2.5 32B's.
# The small shapes are for a CPU: all sizes are a quarter larger than the demo pair's.
SHAPES = {
    "llama-3.1-8b": LlamaShape(4096, 14336, 32, 32, 8, 128, 128256, tie_word_embeddings=False),
    "llama-3.2-1b": LlamaShape(2048, 8192, 16, 32, 8, 64, 128256, tie_word_embeddings=True),
    "llama-3.2-3b": LlamaShape(3072, 8192, 28, 24, 8, 128, 128256, tie_word_embeddings=True),
    "32b": LlamaShape(5120, 27648, 64, 40, 8, 128, 128256, tie_word_embeddings=False),
    "small-target": LlamaShape(384, 1024, 15, 8, 4, 96, 4096, tie_word_embeddings=False),
    "small-draft": LlamaShape(320, 896, 2, 8, 2, 64, 4096, tie_word_embeddings=True),
}
