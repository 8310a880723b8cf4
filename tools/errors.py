"""The exception of the `tandem` command, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TandemError(Exception):
    """An error that the user can fix. The message is one line: what, where and how to fix it."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error line for an unknown name: the closest known name, or all names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(names)}"
