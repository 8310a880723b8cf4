"""Verification by logits, which decides the draft tokens that the target keeps, and adds one token.

It preserves the target's distribution: Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023
(arXiv:2302.01318). The number of accepted tokens is the number of emitted tokens minus 1.
`sampling.acceptance` has the rules for one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tandem.engines.engine import Floats
from tandem.engines.noise import draw
from tandem.sampling.acceptance import accepts


class Proposal(NamedTuple):
    """The draft of a verification by probabilities, and its random numbers.

    tokens: [k], the draft tokens.
    q: k rows [vocab_size], the probabilities that the tokens were drawn from.
    u: [k], random in [0, 1), or a constant threshold. A constant is lossy: it changes the
        distribution of the text, as in TensorRT-LLM (externalDraftTokensKernels.cu).
    keys: [k + 1], noise keys for a correction at each draft token and for the bonus token.
    """

    tokens: Sequence[int]
    q: Iterable[Floats]
    u: Sequence[float]
    keys: Sequence[int]


def verify_probabilities(p: Iterator[Floats], proposal: Proposal) -> list[int]:
    """Logits mode: accept with min(1, p/q), correct from norm(max(0, p - q)), bonus from p.

    p: k + 1 rows [vocab_size], the target's probabilities. Rows after a rejected token aren't
    computed. Returns the emitted tokens.
    """
    drafts, qs, us, keys = proposal
    for i, (token, own, q, u) in enumerate(zip(drafts, p, qs, us, strict=False)):
        if not accepts(float(own[token]), float(q[token]), u):
            return [*drafts[:i], draw(residual(own, q), keys[i])]
    return [*drafts, draw(next(p), keys[-1])]


def residual(p: Floats, q: Floats) -> Floats:
    """Return max(0, p - q), which a correction is drawn from, or p if rounding leaves nothing."""
    left: Floats = np.maximum(p - q, 0)
    return left if left.sum() > 0 else p
