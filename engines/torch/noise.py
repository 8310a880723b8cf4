"""The noise of `engines.noise`, computed on the device to avoid copying wide rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.engines.noise import FIRST_FACTOR, SECOND_FACTOR, SHIFTS, STEP

_TINY = torch.finfo(torch.float32).tiny


def keys_on(device: torch.device, keys: Sequence[int]) -> torch.Tensor:
    """Return the keys of `hash_key` [n] as int64 with the same bits."""
    return torch.tensor([_to_signed(key) for key in keys], dtype=torch.int64, device=device)


def exponentials_for_keys(keys: torch.Tensor, width: int) -> torch.Tensor:
    """Return [n, width] draws from Exp(1), equal to `exponentials` for the keys [n].

    The last bit may differ, because devices round logarithms differently.
    """
    bits = torch.arange(1, width + 1, device=keys.device) * _to_signed(STEP) + keys[:, None]
    for shift, factor in zip(SHIFTS, (FIRST_FACTOR, SECOND_FACTOR), strict=False):
        bits ^= _shift_right(bits, shift)
        bits *= _to_signed(factor)
    bits ^= _shift_right(bits, SHIFTS[2])
    draws = _shift_right(bits, 11).double().add_(0.5).mul_(2.0**-53)
    return draws.log_().neg_().float().clamp_(min=_TINY)


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Shift right by `count` bits, filling with zeros regardless of the sign."""
    shifted = bits >> count
    shifted &= (1 << (64 - count)) - 1
    return shifted


def _to_signed(number: int) -> int:
    return number - (number >> 63 << 64)
