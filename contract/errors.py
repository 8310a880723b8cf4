"""The kind of an error: Triton's code, a class where that is too coarse, and how both travel.

A call between models loses the code before Triton 25.04: each error arrives as INTERNAL. So a
model that is called by another one writes the code before its line, and the caller takes it off.

Triton has one code for a server that has too much to do and one that lost an engine, and none for
a deadline. So where a client should act otherwise than the code says, the line itself begins with
the class, for whoever reads it by whatever protocol.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypeVar, get_args

ErrorCode: TypeAlias = Literal[
    "INVALID_ARG",  # the call itself is at fault, and would be refused again
    "UNSUPPORTED",
    "NOT_FOUND",
    "UNAVAILABLE",  # another server, or this one later, may answer; part may have been streamed
    "CANCELLED",  # nobody waits for the answer any more
    "INTERNAL",  # something failed on the way
]
ErrorClass: TypeAlias = Literal[
    "overloaded",  # UNAVAILABLE: all is well, and full; come again in a moment
    "model_unavailable",  # UNAVAILABLE: a model behind the entry is lost, or shuts down
    "model_timeout",  # INTERNAL: a model behind the entry did not answer in time
    "deadline_exceeded",  # INTERNAL: the request used its own time up
    "invalid_guide",  # INVALID_ARG: what the answer is to look like cannot be compiled or followed
]
Prefix = TypeVar("Prefix", bound=str)

CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)
CLASSES: Final[tuple[ErrorClass, ...]] = get_args(ErrorClass)


def coded(code: ErrorCode, line: str) -> str:
    """Write a code before an error's line, but for INTERNAL, which it arrives as anyway."""
    return line if code == "INTERNAL" else f"{code}: {line}"


def decoded(line: str) -> tuple[ErrorCode | None, str]:
    """Return the code before an error's line, if there is one, and the line without it.

    >>> decoded("UNAVAILABLE: overloaded: try again later")
    ('UNAVAILABLE', 'overloaded: try again later')
    """
    return _split(CODES, line)


def classified(error_class: ErrorClass | None, line: str) -> str:
    """Write a class before an error's line."""
    return line if error_class is None else f"{error_class}: {line}"


def class_of(line: str) -> tuple[ErrorClass | None, str]:
    """Return the class before an error's line, if there is one, and the line without it.

    >>> class_of("overloaded: try again later")
    ('overloaded', 'try again later')
    """
    return _split(CLASSES, line)


def _split(prefixes: tuple[Prefix, ...], line: str) -> tuple[Prefix | None, str]:
    for prefix in prefixes:
        if line.startswith(f"{prefix}: "):
            return prefix, line.removeprefix(f"{prefix}: ")
    return None, line
