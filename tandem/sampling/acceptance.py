"""Where a draft token is accepted: by its id, or by its probability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def verify_ids(drafts: Sequence[int], own: Iterable[int]) -> list[int]:
    """Accept draft tokens while they equal the target's own tokens. Return the emitted tokens.

    own: the target's token at each position, at least up to the first that differs from the draft.
    That token is the correction. It is already a sample from the target: drawing again would bias
    it away from the draft. If none differs, the token after the draft is the bonus token.
    """
    emitted = []
    for draft, token in zip([*drafts, None], own, strict=False):
        emitted.append(token)
        if token != draft:
            break
    return emitted


def accepts(p: Any, q: Any, u: Any) -> Any:
    """Return whether to accept a token with target probability p and draft probability q.

    If u is random in [0, 1), the token is accepted with probability min(1, p / q) (Leviathan et al.
    2023, arXiv:2211.17192). Then replacing a rejected token with a sample from norm(max(0, p - q))
    preserves the target's distribution. With a constant u, as for an acceptance threshold, the
    distribution changes. The arguments are numbers, or arrays of equal shapes.
    """
    return (p > 0) & (u * q <= p)
