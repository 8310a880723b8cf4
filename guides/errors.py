"""What can be wrong with a guide."""

from __future__ import annotations


class GuideError(Exception):
    """A guide cannot be compiled or followed; the text is one line that says why."""


class TokenForbidden(GuideError):
    """A token came that the guide forbids."""
