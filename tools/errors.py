"""The one exception of the `tandem` command, and the hint for a name that doesn't exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TandemError(Exception):
    """An error that the user can fix. The message is one line: what, where and how to fix it."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(names)}"
