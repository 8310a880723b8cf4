"""Errors and warnings about guides."""

from __future__ import annotations

LONGEST_REASON = 300  # characters


class GuideError(Exception):
    """A guide can't be compiled or followed; the text is one line."""


class GuideUndecided(GuideError):
    """A guide could not be checked, for a temporary reason."""


class GuideTakesLong(GuideUndecided):
    """A guide was not compiled within its time limit."""


class EndsExcluded(GuideError):
    """A guide and the end ids of a request exclude each other."""


class TokenForbidden(GuideError):
    """The guide forbids a token of the answer."""


class GuideWarning(UserWarning):
    """A part of a guide isn't enforced; the text is one line."""


def shortened(reason: str) -> str:
    """Shorten an error message that repeats a long guide, by cutting out its middle."""
    if len(reason) <= LONGEST_REASON:
        return reason
    half = LONGEST_REASON // 2
    return f"{reason[:half]} ... {reason[-half:]}"
