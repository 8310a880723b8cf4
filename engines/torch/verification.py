"""Verification: decide which draft tokens the target keeps, and add one token.

Both rules preserve the target's distribution: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al.
2023 (arXiv:2302.01318). The number of accepted tokens is `len(emitted) - 1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the field's name for it)

from tandem.engines.noise import Purpose, exponentials, exponentials_at, uniform
from tandem.engines.torch.noise import exponentials_of
from tandem.engines.torch.scores import Row, Rows
from tandem.sampling.acceptance import accepts


def verify_ids(drafts: Sequence[int], chosen: Iterable[int]) -> list[int]:
    """ID mode: accept drafts while they equal `chosen` [k + 1], the target's own tokens.

    The first chosen token that differs from the draft is the correction. It is already a sample
    from the target. Drawing again would bias it away from the draft. Later tokens are not read.
    """
    own_tokens = iter(chosen)
    for i, (draft, own) in enumerate(zip(drafts, own_tokens, strict=False)):
        if draft != own:
            return [*drafts[:i], own]
    return [*drafts, next(own_tokens)]


def verify_probabilities(
    drafts: Sequence[int],
    p: Rows,
    q: Rows,
    *,
    seed: int,
    position: int,
    threshold: float | None = None,
) -> list[int]:
    """Logits mode: accept with min(1, p/q), correct from norm(max(0, p - q)), bonus from p.

    p: [k + 1, vocab_size], the target's warped probabilities. q: [k, vocab_size], the draft's. Rows
        after the first rejected token are not read.
    position: absolute position of the first draft token.
    threshold: replaces the random number: accept if p/q reaches it, as in TensorRT-LLM
        (externalDraftTokensKernels.cu). This is lossy: it changes the distribution of the text.
    """
    for i, token in enumerate(drafts):
        u = uniform(seed, position + i, Purpose.ACCEPT) if threshold is None else threshold
        if not accepts(float(p[i][token]), float(q[i][token]), u):
            return [*drafts[:i], draw(residual(p[i], q[i]), seed, position + i, Purpose.RESIDUAL)]
    return [*drafts, draw(p[len(drafts)], seed, position + len(drafts), Purpose.SAMPLE)]


class DeviceDrafts(NamedTuple):
    """The inputs of a verification by probabilities, on the device.

    drafts: [k], the draft tokens.
    q: [k, vocab_size], the probabilities that the drafts were drawn from.
    u: [k] in float64, random in [0, 1) or constant.
    keys: [k + 1], noise keys for a correction at each draft token and for the bonus token.
    """

    drafts: torch.Tensor
    q: torch.Tensor
    u: torch.Tensor
    keys: torch.Tensor


def verify_probabilities_on_device(p: torch.Tensor, inputs: DeviceDrafts) -> torch.Tensor:
    """Run `verify_probabilities` on the device. Return the tokens [k + 1], padded with -1.

    p: [k + 1, vocab_size].
    """
    drafts, q, u, keys = inputs
    place = torch.arange(len(p), device=p.device)
    p_of, q_of = (part[place[:-1], drafts].double() for part in (p[:-1], q))
    accepted = accepts(p_of, q_of, u).long().cumprod(0).sum()[None]
    # Nothing was proposed after the last draft token, so the residual there is p itself.
    proposed = F.pad(q, (0, 0, 0, 1)).index_select(0, accepted)
    source = residual(p.index_select(0, accepted), proposed)
    noise = exponentials_of(keys.index_select(0, accepted), p.shape[-1])
    added = (source / noise).argmax(-1)
    kept = torch.where(place < accepted, F.pad(drafts, (0, 1)), -1)
    return torch.where(place == accepted, added, kept)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return max(0, p - q), which a correction is drawn from, or p if rounding leaves nothing."""
    left = (p - q).clamp_(min=0)
    return torch.where(left.sum() > 0, left, p)


def draw(weights: Row, seed: int, position: int, purpose: Purpose) -> int:
    """Sample an index from unnormalized weights [vocab_size], with the noise of this key.

    If most weights are 0, noise is computed only for the others.
    """
    if 2 * int(weights.count_nonzero()) > len(weights):
        noise = torch.from_numpy(exponentials(seed, position, purpose, len(weights)))
        return int((weights / noise.to(weights.device)).argmax())
    live = weights.nonzero()[:, 0]
    noise = torch.from_numpy(exponentials_at(seed, position, purpose, live.cpu().numpy()))
    return int(live[(weights[live] / noise.to(weights.device)).argmax()])
