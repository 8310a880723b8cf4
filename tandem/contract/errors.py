"""Codes and classes of errors, and how they are sent.

Before Triton 25.04, a call between models loses the code of an error: every error arrives as
INTERNAL. So a model that is called by another model writes the code before its message, and the
caller removes it.

Some of Triton's codes are too coarse: the same code stands for an overloaded server and for a
server that lost an engine, and no code stands for a deadline. If clients need to know more than the
code, the message begins with an error class, in every protocol.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, TypeVar, get_args

ErrorCode: TypeAlias = Literal[
    "INVALID_ARG",  # the call is invalid and would be rejected again
    "UNSUPPORTED",
    "NOT_FOUND",
    "UNAVAILABLE",  # a retry, here or on another server, may succeed
    "CANCELLED",  # the client left
    "INTERNAL",  # any other failure
]
ErrorClass: TypeAlias = Literal[
    "overloaded",  # UNAVAILABLE: the queue is full; retry later (HTTP 429 at the gateway)
    "model_unavailable",  # UNAVAILABLE: a called model died, is shutting down or is unloaded
    "model_timeout",  # INTERNAL: a model that the entry calls didn't answer in time
    "deadline_exceeded",  # INTERNAL: the request exceeded its timeout
    "invalid_guide",  # INVALID_ARG: the guide can't be compiled or followed
]
Prefix = TypeVar("Prefix", bound=str)

CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)
CLASSES: Final[tuple[ErrorClass, ...]] = get_args(ErrorClass)


def prefix_code(code: ErrorCode, line: str) -> str:
    """Write a code before an error's line. INTERNAL isn't written, because it is the default."""
    return line if code == "INTERNAL" else f"{code}: {line}"


def split_code(line: str) -> tuple[ErrorCode | None, str]:
    """Split an error's line into its code, or None, and the rest of the line.

    >>> split_code("UNAVAILABLE: overloaded: try again later")
    ('UNAVAILABLE', 'overloaded: try again later')
    """
    return _split(CODES, line)


def prefix_class(error_class: ErrorClass | None, line: str) -> str:
    """Write a class before an error's line. None leaves the line unchanged."""
    return line if error_class is None else f"{error_class}: {line}"


def split_class(line: str) -> tuple[ErrorClass | None, str]:
    """Split an error's line into its class, or None, and the rest of the line.

    >>> split_class("overloaded: try again later")
    ('overloaded', 'try again later')
    """
    return _split(CLASSES, line)


def _split(prefixes: tuple[Prefix, ...], line: str) -> tuple[Prefix | None, str]:
    for prefix in prefixes:
        if line.startswith(f"{prefix}: "):
            return prefix, line.removeprefix(f"{prefix}: ")
    return None, line
