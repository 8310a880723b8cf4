"""The Llama family's forward pass without transformers' overhead per layer.

For a small model on a CPU, half of the time per token is spent in Python and in tiny operations.
This is the same arithmetic, but the query, key and value matrices are joined, as are gate and up,
and rotary angles are computed once. `PackedModel` compares the result with transformers' before
using it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)

from tandem.engines.torch.attention import Attending, attend
from tandem.engines.torch.linear import linear
from tandem.engines.torch.lora import with_adapters

FAMILY = {"llama", "mistral", "qwen2"}
STATIC_ROPE = {"default", "linear", "llama3", "yarn"}  # the angles depend only on the position


class _Layer:
    """Weights of one decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.attention_norm = _copy_weight(layer.input_layernorm)
        self.qkv = _join(attention.q_proj, attention.k_proj, attention.v_proj)
        self.output = _join(attention.o_proj)
        # Qwen2 has a window per layer, Mistral one for all layers, Llama none.
        owner = attention.config if attention.config.model_type == "mistral" else attention
        self.window: int | None = getattr(owner, "sliding_window", None)
        self.mlp_norm = _copy_weight(layer.post_attention_layernorm)
        self.gate_up = _join(mlp.gate_proj, mlp.up_proj)
        self.down = _join(mlp.down_proj)


class FusedLlama:
    """Runs a Llama, Mistral or Qwen2 checkpoint in float32 on a CPU."""

    def __init__(self, model: Any, max_seq_len: int) -> None:
        """Move the weights out of a transformers model."""
        config = model.config
        decoder = model.model
        self.num_heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._size: int = decoder.layers[0].self_attn.head_dim
        self._eps: float = config.rms_norm_eps
        self._embedding = _copy_weight(decoder.embed_tokens)
        self._angles = _angles(decoder, max_seq_len)
        self._norm = _copy_weight(decoder.norm)
        self._head = linear(model.lm_head.weight, None)
        self._layers = []
        for i in range(len(decoder.layers)):
            self._layers.append(_Layer(decoder.layers[i]))
            decoder.layers[i] = torch.nn.Identity()  # free its weights
        decoder.embed_tokens = model.lm_head = torch.nn.Identity()

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor | None,
        segments: Sequence[Attending],
    ) -> torch.Tensor:
        """Return logits [rows, vocab_size] for ids and positions [tokens].

        rows: indices of the tokens whose logits are needed; None: all tokens.
        """
        hidden = F.embedding(ids, self._embedding)
        angles = self._angles[positions]  # [tokens, 2, 1, size]
        for i, layer in enumerate(self._layers):
            hidden = self._attention(i, layer, hidden, angles, segments)
            normed = F.rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, self._eps)
            gate, up = layer.gate_up(normed).chunk(2, -1)
            hidden = hidden + layer.down(F.silu(gate).mul_(up))
        if rows is not None:
            hidden = hidden[rows]
        logits: torch.Tensor = self._head(
            F.rms_norm(hidden, self._norm.shape, self._norm, self._eps)
        )
        return logits

    def _attention(
        self,
        index: int,
        layer: _Layer,
        hidden: torch.Tensor,
        angles: torch.Tensor,
        segments: Sequence[Attending],
    ) -> torch.Tensor:
        """Return hidden states [tokens, width] plus the output of the attention."""
        normed = F.rms_norm(hidden, layer.attention_norm.shape, layer.attention_norm, self._eps)
        mixed = layer.qkv(normed).view(len(hidden), -1, self._size)
        turned = self.num_heads + self._kv_heads
        query_key, value = torch.split(mixed, [turned, self._kv_heads], 1)
        query_key = _rotate(query_key, angles).transpose(0, 1)[None]
        query, key = torch.split(query_key, [self.num_heads, self._kv_heads], 1)
        qkv = (query, key, value.transpose(0, 1)[None])
        seen = attend(segments, index, qkv, None, layer.window)
        added: torch.Tensor = layer.output(seen.reshape(len(hidden), -1))
        return hidden + added


def supports(model: Any) -> bool:
    config = model.config
    rope = getattr(model, "model", None) and getattr(model.model, "rotary_emb", None)
    return (
        config.model_type in FAMILY
        and config.hidden_act == "silu"
        and not getattr(config, "mlp_bias", False)
        and getattr(rope, "rope_type", None) in STATIC_ROPE
        and model.lm_head.bias is None
    )


def _angles(decoder: Any, positions: int) -> torch.Tensor:
    """Return cosine and sine [positions, 2, 1, size] as transformers computes them."""
    like = decoder.embed_tokens.weight
    cos, sin = decoder.rotary_emb(like, torch.arange(positions, device=like.device)[None])
    return torch.stack((cos[0], sin[0]), 1)[:, :, None]


def _rotate(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embedding (arXiv:2104.09864) to heads [tokens, heads, size]."""
    first, second = heads.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return torch.addcmul(heads * angles[:, 0], turned, angles[:, 1])


def _copy_weight(layer: Any) -> torch.Tensor:
    """Copy a layer's weight, because it may be a view of the whole checkpoint file."""
    weight: torch.Tensor = layer.weight.detach().clone()
    return weight


def _join(*layers: Any) -> Any:
    """Join layers into one linear layer that concatenates their outputs."""
    weight = torch.cat([layer.weight for layer in layers])
    biases = [layer.bias for layer in layers]
    joined = linear(weight, None if biases[0] is None else torch.cat(biases))
    return with_adapters(joined, layers)
