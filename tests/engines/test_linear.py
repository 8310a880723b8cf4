"""Packed linear layers compute the same results as PyTorch's layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tandem.engines.torch.linear import PackedLinear, can_pack, linear, pack_linears, padded

pytestmark = pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")


@pytest.mark.parametrize("rows", [1, 2, 5, 9, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_equal_the_original_layers(rows, bias):
    torch.manual_seed(rows)
    model = nn.ModuleDict(
        {
            "linear": nn.Linear(384, 512, bias=bias),
            "gpt2": Conv1D(512, 384),
            "small": nn.Linear(8, 8),
        }
    ).requires_grad_(False)
    x = torch.randn(1, rows, 384)
    want = {name: model[name](x) for name in ("linear", "gpt2")}
    pack_linears(model)
    assert isinstance(model["small"], nn.Linear)
    for name, expected in want.items():
        assert isinstance(model[name], PackedLinear)
        torch.testing.assert_close(model[name](x), expected, atol=1e-4, rtol=1e-4)


def test_row_counts_are_padded_to_a_few_sizes():
    sizes = [padded(rows) for rows in range(1, 513)]
    assert sizes[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(rows <= size <= rows * 1.25 for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 32


@pytest.mark.parametrize("width", [8, 512])
def test_linear_layers_of_any_width_equal_pytorch(width):
    weight, bias, x = torch.randn(width, 384), torch.randn(width), torch.randn(3, 384)
    torch.testing.assert_close(
        linear(weight, bias)(x), nn.functional.linear(x, weight, bias), atol=1e-4, rtol=1e-4
    )
