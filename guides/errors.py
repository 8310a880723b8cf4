"""What can be wrong with a guide, and what of it isn't enforced."""

from __future__ import annotations

LONGEST_REASON = 300  # characters


class GuideError(Exception):
    """A guide cannot be compiled or followed; the text is one line that says why."""


class GuideUndecided(GuideError):
    """A guide could not be tried out to the end; on another day it may be."""


class GuideTakesLong(GuideUndecided):
    """A guide was not compiled in the time that it was given."""


class EndsExcluded(GuideError):
    """A guide and the end ids of a request exclude each other; with others it may be followed."""


class TokenForbidden(GuideError):
    """A token came that the guide forbids."""


class GuideWarning(UserWarning):
    """A part of a guide isn't enforced; the text is one line that says which."""


def shortened(reason: str) -> str:
    """Leave out the middle of a reason that repeats a long guide."""
    if len(reason) <= LONGEST_REASON:
        return reason
    half = LONGEST_REASON // 2
    return f"{reason[:half]} ... {reason[-half:]}"
