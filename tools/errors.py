"""The exception of the `tandem` command, and phrases for its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal


class TandemError(Exception):
    """An error that the user can fix. The message is one line: what, where and how to fix it."""

    exit_status = 1


class UsageError(TandemError):
    """An error in the command line itself, found before the command does anything."""

    exit_status = 2


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error line for an unknown name: the closest known name, or all names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"choose one of: {', '.join(names)}"


def install_extra(extra: Literal["embedded", "gateway", "gguf", "otel"]) -> str:
    """Return how to install an extra; the advice is valid for uv, pipx and pip."""
    return f"install Tandem with the extra '{extra}' (README, Install)"
