"""Verification by logits, and the noise that tokens are drawn with, on the device.

Verification decides which draft tokens the target keeps, and adds one token. It preserves the
target's distribution: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023
(arXiv:2302.01318). The number of accepted tokens is the number of emitted tokens minus 1.
`sampling.acceptance` has the rules for one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)

from tandem.engines.noise import FIRST_FACTOR, SECOND_FACTOR, SHIFTS, STEP
from tandem.sampling.acceptance import accepts

_TINY = torch.finfo(torch.float32).tiny
REJECTED = -1  # in place of the tokens after a rejected draft token


class Proposal(NamedTuple):
    """The draft of a verification by probabilities, and its random numbers, on the device.

    tokens: [k], the draft tokens.
    q: [k, vocab_size], the probabilities that the tokens were drawn from.
    u: [k] in float64, random in [0, 1), or a constant threshold. A constant is lossy: it changes
        the distribution of the text, as in TensorRT-LLM (externalDraftTokensKernels.cu).
    keys: [k + 1], noise keys for a correction at each draft token and for the bonus token.
    """

    tokens: torch.Tensor
    q: torch.Tensor
    u: torch.Tensor
    keys: torch.Tensor


def verify_probabilities(p: torch.Tensor, proposal: Proposal) -> torch.Tensor:
    """Logits mode: accept with min(1, p/q), correct from norm(max(0, p - q)), bonus from p.

    p: [k + 1, vocab_size], the target's probabilities. Returns the emitted tokens [k + 1], padded
    with `REJECTED`.
    """
    drafts, q, u, keys = proposal
    place = torch.arange(len(p), device=p.device)
    p_of, q_of = (part[place[:-1], drafts].double() for part in (p[:-1], q))
    accepted = accepts(p_of, q_of, u).long().cumprod(0).sum()[None]
    # Nothing was proposed after the last draft token, so the residual there is p itself.
    proposed = F.pad(q, (0, 0, 0, 1)).index_select(0, accepted)
    added = draw(residual(p.index_select(0, accepted), proposed), keys.index_select(0, accepted))
    kept = torch.where(place < accepted, F.pad(drafts, (0, 1)), REJECTED)
    return torch.where(place == accepted, added, kept)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return max(0, p - q), which a correction is drawn from, or p if rounding leaves nothing."""
    left = (p - q).clamp_(min=0)
    return torch.where(left.sum() > 0, left, p)


def draw(weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Sample an index per row of unnormalized weights [rows, n], with the noise keys [rows]."""
    if weights.device.type == "cpu":  # most weights are 0 after top-k, top-p or min-p
        return torch.stack([_draw_one(row, key) for row, key in zip(weights, keys, strict=True)])
    places = torch.arange(weights.shape[-1], device=keys.device)
    return (weights / exponentials_for_keys(keys, places)).argmax(-1)


def _draw_one(weights: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Sample an index of unnormalized weights [n]; compute noise only where they aren't 0."""
    places = torch.from_numpy(np.flatnonzero(weights.numpy() != 0))
    chances = weights[places] / exponentials_for_keys(key[None], places)[0]
    return places[argmax(chances)]


def argmax(scores: torch.Tensor) -> torch.Tensor:
    """Return the index of the highest score in each row [..., n]. On CPUs, NumPy is faster."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.asarray(scores.float().numpy().argmax(-1)))
    return scores.argmax(-1)


def keys_on(device: torch.device, keys: Sequence[int]) -> torch.Tensor:
    """Return the keys of `hash_key` [n] as int64 with the same bits."""
    return torch.tensor([_to_signed(key) for key in keys], dtype=torch.int64, device=device)


def exponentials_for_keys(keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the draws of `exponentials` from Exp(1) at the places [k], as [n, k].

    The last bit may differ, because devices round logarithms differently.
    """
    bits = (places + 1) * _to_signed(STEP) + keys[:, None]
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
