"""The rule by which a draft token stays: Leviathan et al. 2023 (arXiv:2211.17192)."""

from __future__ import annotations

from typing import Any


def accepts(p: Any, q: Any, u: Any) -> Any:
    """Whether a token proposed with probability q, for which the target has p, is accepted.

    That is with probability min(1, p / q), for a random u in [0, 1). A rejected token is replaced
    by one from norm(max(0, p - q)), which leaves the target's distribution. A constant u is lossy.
    Numbers, or arrays or tensors of equal shapes.
    """
    return (p > 0) & (u * q <= p)
