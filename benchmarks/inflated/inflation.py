"""Makes a Llama model wider and deeper without changing its function.

New columns of the hidden state are zero everywhere, so they don't change the old columns:

- RMSNorm divides by the mean over more columns. Its weights and epsilon compensate for that.
- A larger head keeps its rotary angles with theta' = theta^(new / old size), and its scores with
  queries scaled by sqrt(new / old size). Each half of the old head is at the start of a new half.
- A key-value head is repeated if fewer query heads share it.
- New layers, heads and MLP columns write zeros into the hidden state.
- New rows of the vocabulary always have the lowest logits. They need one hidden column that is the
  same for every token. Its value is small, and replaces half the epsilon of each RMSNorm.

Weights without any effect are random, so that multiplications take the usual time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from benchmarks.inflated.shapes import LlamaShape

_NOISE = 0.02
_FINAL_WEIGHT = 64.0  # weight of the constant column in the last RMSNorm
_NEVER = -59904.0  # constant column of the new vocabulary rows; exact in float16 and bfloat16


class ShapeError(Exception):
    """Raised if a checkpoint can't be inflated to a shape; the message says why."""


def inflated_config(base: Any, shape: LlamaShape) -> LlamaConfig:
    """Return the config of an inflated checkpoint; raise ShapeError. base: transformers' Llama."""
    _check(base, shape)
    wider = shape.hidden_size / base.hidden_size
    epsilon = base.rms_norm_eps
    if shape.vocab_size > base.vocab_size:
        epsilon -= _constant(base) ** 2 / base.hidden_size
    theta = base.rope_parameters["rope_theta"] ** (shape.head_dim / base.head_dim)
    return LlamaConfig(
        **shape._asdict(),
        rms_norm_eps=epsilon / wider,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        max_position_embeddings=base.max_position_embeddings,
        bos_token_id=base.bos_token_id,
        eos_token_id=base.eos_token_id,
        pad_token_id=base.pad_token_id,
    )


@torch.no_grad()
def inflate(base: Any, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a causal language model that computes the same function as `base`, on a device.

    base: transformers' Llama. config: the result of `inflated_config` for `base`.
    """
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config).to(dtype)  # type: ignore[arg-type]
    model.to_empty(device=device)
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config=config).to(device)
    writer = _Writer(base, config, torch.Generator(device).manual_seed(0))
    writer.write_vocabulary(model)
    for i, layer in enumerate(model.model.layers):
        writer.write_layer(layer, base.model.layers[i] if i < len(base.model.layers) else None)
    return model.eval().requires_grad_(requires_grad=False)


class _Writer:
    """Fills in the parameters of the larger model."""

    def __init__(self, base: Any, config: LlamaConfig, generator: torch.Generator) -> None:
        self._base = base
        self._old = base.config
        self._new = config
        self._generator = generator
        self._norm_factor = math.sqrt(self._old.hidden_size / config.hidden_size)

    def write_vocabulary(self, model: Any) -> None:
        """Write the embeddings, the last RMSNorm and the output layer."""
        self._write_norm(model.model.norm, self._base.model.norm)
        embeddings, head = model.model.embed_tokens.weight, model.lm_head.weight
        old_size, column = self._old.vocab_size, self._old.hidden_size
        for weight in {id(w): w for w in (embeddings, head)}.values():
            _put(weight.zero_(), self._base.model.embed_tokens.weight)
        if head is not embeddings:
            _put(head, self._base.lm_head.weight)
        if len(head) > old_size:
            embeddings[:, column] = _constant(self._old)
            head[old_size:, column] = _NEVER
            model.model.norm.weight[column] = _FINAL_WEIGHT

    def write_layer(self, layer: Any, old: Any | None) -> None:
        """Write a decoder layer that computes the same as `old` (None: the identity)."""
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            self._noise(linear.weight)
        for linear in (mlp.gate_proj, mlp.up_proj):
            self._noise(linear.weight)
        attention.o_proj.weight.zero_()
        mlp.down_proj.weight.zero_()
        self._write_norm(layer.input_layernorm, old and old.input_layernorm)
        self._write_norm(layer.post_attention_layernorm, old and old.post_attention_layernorm)
        if old is not None:
            self._write_attention(attention, old.self_attn)
            _put(mlp.gate_proj.weight, old.mlp.gate_proj.weight)
            _put(mlp.up_proj.weight, old.mlp.up_proj.weight)
            _put(mlp.down_proj.weight, old.mlp.down_proj.weight)

    def _write_attention(self, new: Any, old: Any) -> None:
        """Write the old query heads into the groups of their key-value heads."""
        size, old_size = int(self._new.head_dim or 0), int(self._old.head_dim)
        width = self._old.hidden_size
        louder = math.sqrt(size / old_size)
        places = _places(self._old, self._new)
        query, key, value = (
            linear.weight.view(-1, size, self._new.hidden_size)
            for linear in (new.q_proj, new.k_proj, new.v_proj)
        )
        old_query, old_key, old_value = (
            linear.weight.view(-1, old_size, width)
            for linear in (old.q_proj, old.k_proj, old.v_proj)
        )
        output = new.o_proj.weight.view(self._new.hidden_size, -1, size)
        old_output = old.o_proj.weight.view(width, -1, old_size)
        at = _halves(old_size, size)
        for head, (place, kv_place) in enumerate(places):
            kv_head = head * len(old_key) // len(old_query)
            query[place] = 0
            query[place, at, :width] = (louder * old_query[head]).to(query)
            key[kv_place, at, :width] = old_key[kv_head].to(key)
            value[kv_place, :old_size, :width] = old_value[kv_head].to(value)
            output[:width, place, :old_size] = old_output[:, head].to(output)

    def _write_norm(self, norm: Any, old: Any | None) -> None:
        norm.weight.zero_()
        if old is not None:
            norm.weight[: len(old.weight)] = (self._norm_factor * old.weight).to(norm.weight)

    def _noise(self, weight: torch.Tensor) -> None:
        weight.normal_(0, _NOISE, generator=self._generator)


def _check(base: Any, shape: LlamaShape) -> None:
    """Raise ShapeError if the model isn't supported or doesn't fit into the shape."""
    odd = base.model_type != "llama" or base.attention_bias or base.mlp_bias
    if odd or base.rope_parameters["rope_type"] != "default":
        raise ShapeError(
            "only Llama checkpoints without biases and with plain RoPE can be inflated"
        )
    for name, size in shape._asdict().items():
        if size < getattr(base, name) and name != "tie_word_embeddings":
            raise ShapeError(f"{name} must be at least {getattr(base, name)}; got {size}")
    if shape.tie_word_embeddings and not base.tie_word_embeddings:
        raise ShapeError("the checkpoint's head is not its embeddings; the shape's must be")
    if shape.vocab_size > base.vocab_size and shape.hidden_size == base.hidden_size:
        raise ShapeError("a larger vocabulary needs a larger hidden_size, because it uses a column")
    _places(base, shape)


def _places(old: Any, new: Any) -> list[tuple[int, int]]:
    """Return the new indices of each old query head and its key-value head."""
    groups = old.num_attention_heads // old.num_key_value_heads
    new_groups = new.num_attention_heads // new.num_key_value_heads
    copies = -(-groups // new_groups)
    if copies * old.num_key_value_heads > new.num_key_value_heads:
        raise ShapeError(
            f"num_key_value_heads must be at least {copies * old.num_key_value_heads}; "
            f"got {new.num_key_value_heads}"
        )
    places = []
    for head in range(old.num_attention_heads):
        kv_head, member = divmod(head, groups)
        copy, seat = divmod(member, new_groups)
        kv_place = kv_head * copies + copy
        places.append((kv_place * new_groups + seat, kv_place))
    return places


def _halves(old_size: int, size: int) -> list[int]:
    """Return the new row of each old row of a head.

    Rotary embedding rotates row i together with row i + half.
    """
    half, new_half = old_size // 2, size // 2
    return [*range(half), *range(new_half, new_half + half)]


def _constant(base: Any) -> float:
    """Return the value of the constant column, which is exact in bfloat16.

    Its square replaces half the epsilon of an RMSNorm.
    """
    exact = math.sqrt(base.rms_norm_eps * base.hidden_size / 2)
    return float(torch.tensor(exact).to(torch.bfloat16))


def _put(weight: torch.Tensor, old: torch.Tensor) -> None:
    """Write an old matrix into the first rows and columns of a larger matrix."""
    weight[: old.shape[0], : old.shape[1]] = old.to(weight)
