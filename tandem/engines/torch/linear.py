"""Linear layers for a few tokens at a time on a CPU.

Decoding and verification multiply each weight matrix by 1 to 10 rows. PyTorch's default (MKL) packs
the whole matrix for each product, so five rows take 1.5 times as long as one. oneDNN packs the
matrix once, so five rows take as long as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)
from torch import nn
from transformers.pytorch_utils import Conv1D

# A matrix with fewer weights stays in the CPU's cache, so packing wouldn't help.
MIN_WEIGHTS = 1 << 17


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed by oneDNN. Only for float32 on a CPU."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        count = rows.shape[-2]
        missing = round_up_rows(count) - count
        if missing:
            rows = F.pad(rows, (0, 0, 0, missing))
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return product[..., :count, :] if missing else product


def round_up_rows(rows: int) -> int:
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
