"""Acceptance of draft tokens by p/q: Leviathan et al. 2023 (arXiv:2211.17192)."""

from __future__ import annotations

from typing import Any


def accepts(p: Any, q: Any, u: Any) -> Any:
    """Return whether to accept a token with draft probability q and target probability p.

    With a random u in [0, 1), it is accepted with probability min(1, p / q). Replacing a rejected
    token by one from norm(max(0, p - q)) preserves the target's distribution. A constant u doesn't.
    Arguments are numbers, or arrays or tensors of equal shapes.
    """
    return (p > 0) & (u * q <= p)
