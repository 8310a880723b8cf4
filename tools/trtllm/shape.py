"""Reads the size of a decoder-only model from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.tools.profiles.checkpoint import read_config

# model_type of config.json -> the keys of how many experts a layer has and how wide each is. The
# other layers of all of them are an embedding, attention of grouped heads, and gated MLPs.
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
TIED = ("gemma", "gemma2")  # if config.json doesn't say whether embedding and output layer are one


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model.

    embedding_parameters: of the token embedding; the output layer has as many. is_tied: whether
    both are one table. layer_parameters: of one transformer layer.
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
    """Read config.json; return None if the number of parameters of such a model is unknown."""
    try:
        return _shape(read_config(folder))
    except (KeyError, TypeError, ZeroDivisionError):  # absent, or not one number for all layers
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
