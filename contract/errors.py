"""Triton's code of an error, a class if the code is too coarse, and how both are sent.

A call between models loses the code before Triton 25.04: each error arrives as INTERNAL. So a model
that is called by another one writes the code before its line, and the caller removes it.

Triton has the same code for an overloaded server and for one that lost an engine, and none for a
deadline. If a client should react differently than to the code alone, the line begins with the
class, in every protocol.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypeVar, get_args

ErrorCode: TypeAlias = Literal[
    "INVALID_ARG",  # the call itself is wrong, and would be rejected again
    "UNSUPPORTED",
    "NOT_FOUND",
    "UNAVAILABLE",  # another server, or this one later, may answer
    "CANCELLED",  # the client left
    "INTERNAL",  # something failed
]
ErrorClass: TypeAlias = Literal[
    "overloaded",  # UNAVAILABLE: the queue is full; retry later (HTTP 429 at the gateway)
    "model_unavailable",  # UNAVAILABLE: a model behind the entry died or shuts down
    "model_timeout",  # INTERNAL: a model behind the entry did not answer in time
    "deadline_exceeded",  # INTERNAL: the request exceeded its time-out
    "invalid_guide",  # INVALID_ARG: the guide cannot be compiled or followed
]
Prefix = TypeVar("Prefix", bound=str)

CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)
CLASSES: Final[tuple[ErrorClass, ...]] = get_args(ErrorClass)


def coded(code: ErrorCode, line: str) -> str:
    """Write a code before an error's line, except INTERNAL, which is what arrives anyway."""
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
