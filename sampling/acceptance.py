"""Acceptance of draft tokens by probability (Leviathan et al. 2023, arXiv:2211.17192)."""

from __future__ import annotations

from typing import Any


def accepts(p: Any, q: Any, u: Any) -> Any:
    """Return whether to accept a token with target probability p and draft probability q.

    If u is random in [0, 1), the token is accepted with probability min(1, p / q). Then replacing a
    rejected token with a sample from norm(max(0, p - q)) preserves the target's distribution. With
    a constant u, as for an acceptance threshold, the distribution changes. The arguments are
    numbers, or arrays or tensors of equal shapes.
    """
    return (p > 0) & (u * q <= p)
