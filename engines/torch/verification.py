"""Verification: decide which draft tokens the target keeps, and add one token.

Both rules preserve the target's distribution: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al.
2023 (arXiv:2302.01318). The number of accepted tokens is the number of emitted tokens minus 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)

from tandem.engines.torch.noise import exponentials_for_keys
from tandem.sampling.acceptance import accepts

REJECTED = -1  # in place of the tokens after a rejected draft token


def verify_ids(drafts: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """ID mode: accept drafts while they equal `chosen` [k + 1], the target's own tokens.

    The first chosen token that differs from the draft is the correction. It is already a sample
    from the target. Drawing again would bias it away from the draft.
    """
    for i, (draft, own) in enumerate(zip(drafts, chosen, strict=False)):
        if draft != own:
            return [*drafts[:i], own]
    return [*drafts, chosen[len(drafts)]]


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
    return (weights / exponentials_for_keys(keys, weights.shape[-1])).argmax(-1)
