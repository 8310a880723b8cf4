"""Errors and warnings about guides."""

from __future__ import annotations

LONGEST_REASON = 300  # maximum number of characters of an error message
# Longer runs of forced tokens are rejected: with 100,000 tokens, each takes 0.1 s, and all need
# 100 MB.
LONGEST_RUN = 4096


class GuideError(Exception):
    """A guide can't be compiled or followed. The message is one line."""


class GuideUndecided(GuideError):
    """A guide couldn't be tested, for a temporary reason."""


class GuideTakesLong(GuideUndecided):
    """A guide couldn't be compiled within the time limit."""


class TokenForbidden(GuideError):
    """The answer contains a token that its guide disallows."""


class GuideWarning(UserWarning):
    """A part of a guide isn't enforced. The message is one line."""


def check_run(num_tokens: int) -> None:
    """Raise GuideError if a guide forces too many consecutive tokens."""
    if num_tokens > LONGEST_RUN:
        raise GuideError(
            f"it forces {num_tokens} consecutive tokens; the limit is {LONGEST_RUN}; use shorter "
            "constants"
        )


def shortened(reason: str) -> str:
    """Cut out the middle of a long error message, which may repeat a long guide."""
    if len(reason) <= LONGEST_REASON:
        return reason
    half = LONGEST_REASON // 2
    return f"{reason[:half]} ... {reason[-half:]}"
