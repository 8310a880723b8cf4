"""How long an engine call may take."""

from __future__ import annotations

# A draft engine computes thousands of tokens a second; a slower one is not worth calling.
CONTEXT_TOKENS = 2048


def draft_timeout(context_length: int, timeout: float, *, at_most: float) -> float:
    """Return the time-out of a draft call, in seconds: ``timeout`` for each 2,048 context tokens.

    A round computes a few of them. An answer's first call computes all, and so does one behind an
    eviction: that takes as long as it takes, and says nothing about the engine's health.
    at_most: the target's own time-out; a draft that takes longer does not help it.
    """
    return max(timeout, min(at_most, timeout * context_length / CONTEXT_TOKENS))
