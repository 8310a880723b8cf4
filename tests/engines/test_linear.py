"""Packed linear layers compute the same results as PyTorch's layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from tandem.engines.torch.cpu import PackedLinear, can_pack, pack_linears

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
