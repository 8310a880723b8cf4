"""The kind of an error, as Triton's error codes name it, and its way from model to model.

A call between models loses the code before Triton 25.04: each error arrives as INTERNAL. So a
model that is called by another one writes the code before its line, and the caller takes it off.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

ErrorCode: TypeAlias = Literal[
    "INVALID_ARG",  # the call itself is at fault, and would be refused again
    "UNSUPPORTED",
    "NOT_FOUND",
    "UNAVAILABLE",  # nothing was begun; another server, or this one later, may take it
    "CANCELLED",  # nobody waits for the answer any more
    "INTERNAL",  # something failed on the way
]
CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)


def coded(code: ErrorCode, line: str) -> str:
    """Write a code before an error's line, but for INTERNAL, which it arrives as anyway."""
    return line if code == "INTERNAL" else f"{code}: {line}"


def decoded(line: str) -> tuple[ErrorCode | None, str]:
    """Return the code before an error's line, if there is one, and the line without it.

    >>> decoded("UNAVAILABLE: overloaded: try again later")
    ('UNAVAILABLE', 'overloaded: try again later')
    """
    for code in CODES:
        if line.startswith(f"{code}: "):
            return code, line.removeprefix(f"{code}: ")
    return None, line
