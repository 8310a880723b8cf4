"""Errors and warnings about guides."""

from __future__ import annotations

MAX_REASON_CHARS = 300  # maximum number of characters of an error message
# Longer runs of forced tokens are rejected: with 100,000 tokens, each takes 0.1 s, and all need
# 100 MB.
MAX_RUN_TOKENS = 4096
NO_TEXT = "no text matches it"
TOO_LARGE = "it is too deep or too large to compile; send a simpler one"


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
    if num_tokens > MAX_RUN_TOKENS:
        raise GuideError(
            f"it forces {num_tokens} consecutive tokens; the limit is {MAX_RUN_TOKENS}; use "
            "shorter constants"
        )


def shorten(reason: str) -> str:
    """Cut out the middle of a long error message, which may repeat a long guide."""
    if len(reason) <= MAX_REASON_CHARS:
        return reason
    half = MAX_REASON_CHARS // 2
    return f"{reason[:half]} ... {reason[-half:]}"
