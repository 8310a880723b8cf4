"""Faster forward passes for a few tokens at a time on a CPU.

Decoding and verification multiply each weight matrix by 1 to 10 rows. PyTorch's default (MKL) packs
the whole matrix for each product, so five rows take 1.5 times as long as one. oneDNN packs the
matrix once, so five rows take as long as one.

For a small model, half of the time per token is spent in Python and in tiny operations.
`FusedLlama` does the same arithmetic as transformers, but the query, key and value matrices are
joined, as are gate and up, and rotary angles are computed once. `PackedModel` compares the result
with transformers' before using it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import nn
from transformers.pytorch_utils import Conv1D

from tandem.engines.torch.attention import Attending, attend
from tandem.engines.torch.lora import with_adapters

# A matrix with fewer weights stays in the CPU's cache, so packing wouldn't help.
MIN_WEIGHTS = 1 << 17
FAMILY = {"llama", "mistral", "qwen2"}
STATIC_ROPE = {"default", "linear", "llama3", "yarn"}  # the angles depend only on the position


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed by oneDNN. Only for float32 on a CPU."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        count = rows.shape[-2]
        missing = _round_up_rows(count) - count
        if missing:
            rows = F.pad(rows, (0, 0, 0, missing))
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return product[..., :count, :] if missing else product


def _round_up_rows(rows: int) -> int:
    """Round a number of rows up by at most a quarter: 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40...

    oneDNN compiles a kernel for each number of rows, which takes half a millisecond and half a
    megabyte, and keeps up to a thousand of them.
    """
    step = 1 << max(0, (rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[..., torch.Tensor]:
    """Return a linear layer that maps [..., in] to [..., out], packed if that is faster."""
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    if on_cpu and can_pack() and weight.numel() >= MIN_WEIGHTS:
        return PackedLinear(weight, bias).forward
    weight = weight.detach().clone()
    return lambda rows: F.linear(rows, weight, bias)


def can_pack() -> bool:
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pack_linears(model: nn.Module) -> None:
    if not can_pack():
        return
    for module in list(model.modules()):
        for name, layer in module.named_children():
            child: Any = layer
            if type(child) not in {nn.Linear, Conv1D} or child.weight.numel() < MIN_WEIGHTS:
                continue
            # GPT-2's Conv1D stores its weight as [in, out].
            turned = child.weight.t().contiguous() if isinstance(child, Conv1D) else child.weight
            setattr(module, name, PackedLinear(turned, child.bias))


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
