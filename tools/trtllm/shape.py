"""How large a decoder-only model is, from its config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model with gated MLPs and grouped heads, as Llama, Mistral and Qwen have them.

    embedding_parameters: of the token embedding and of the output layer; they stay unquantized.
    linear_parameters: of all other layers. kv_values: numbers that one token's keys and values are.
    """

    model_type: str
    vocab_size: int
    embedding_parameters: int
    linear_parameters: int
    kv_values: int


def read_shape(folder: Path) -> ModelShape:
    """Read config.json; what it leaves out counts as nothing."""
    config = json.loads((folder / "config.json").read_text())
    layers, width = (config.get(name, 0) for name in ("num_hidden_layers", "hidden_size"))
    heads = config.get("num_attention_heads", 1)
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or width // heads
    attention = 2 * width * heads * head + 2 * width * kv_heads * head  # q and o, k and v
    mlp = 3 * width * config.get("intermediate_size", 0)  # gate, up, down
    vocab_size = config.get("vocab_size", 0)
    tied = config.get("tie_word_embeddings", False)
    return ModelShape(
        model_type=config.get("model_type", "?"),
        vocab_size=vocab_size,
        embedding_parameters=vocab_size * width * (1 if tied else 2),
        linear_parameters=layers * (attention + mlp),
        kv_values=2 * layers * kv_heads * head,
    )
