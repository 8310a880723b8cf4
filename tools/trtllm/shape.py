"""Reads the sizes of a decoder-only model from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.tools.profiles.checkpoint import read_config

# model_type in config.json -> the keys for the number of experts per layer and their width, or None
# without experts. All of these models have an embedding, grouped-query attention and gated MLPs.
EXPERTS: dict[str, tuple[str, str] | None] = {
    "gemma": None,
    "gemma2": None,
    "llama": None,
    "mistral": None,
    "mixtral": ("num_local_experts", "intermediate_size"),
    "phi3": None,
    "qwen2": None,
    "qwen3": None,
    "qwen3_moe": ("num_experts", "moe_intermediate_size"),
}
TIED = ("gemma", "gemma2")  # embedding and output layer are tied unless config.json says otherwise


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    layer_parameters: number of parameters of one transformer layer. embedding_parameters: number of
    parameters of the token embedding, and also of the output layer. is_tied: whether both are the
    same table.
    """

    layers: int
    kv_heads: int
    head_size: int
    layer_parameters: int
    embedding_parameters: int
    is_tied: bool


def read_model_type(folder: Path) -> str:
    return str(read_config(folder).get("model_type", "?"))


def read_shape(folder: Path) -> ModelShape | None:
    """Read config.json; return None if the number of parameters can't be derived from it."""
    try:
        return _shape(read_config(folder))
    except (KeyError, TypeError, ZeroDivisionError):  # missing, or one number per layer
        return None


def _shape(config: Mapping[str, Any]) -> ModelShape | None:
    experts = EXPERTS[config["model_type"]]
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        return None  # not every layer has experts
    width, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or width // heads
    count, inner = (config[key] for key in experts) if experts else (1, config["intermediate_size"])
    router = width * count if experts else 0
    return ModelShape(
        layers=int(config["num_hidden_layers"]),
        kv_heads=kv_heads,
        head_size=head,
        layer_parameters=2 * width * (heads + kv_heads) * head  # q and o, k and v
        + count * 3 * width * inner  # gate, up, down
        + router,
        embedding_parameters=config["vocab_size"] * width,
        is_tied=config.get("tie_word_embeddings", config["model_type"] in TIED),
    )
