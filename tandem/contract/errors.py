"""Codes and classes of errors, and how they are sent.

Before Triton 25.04, a call between models loses the code of an error: every error arrives as
INTERNAL. So a model that is called by another model writes the code before its message, with the
name of the input that is wrong, if there is one: ``INVALID_ARG(max_tokens): ...``. The caller
removes both.

Some of Triton's codes are too coarse: the same code stands for an overloaded server and for a
server that lost an engine, and no code stands for a deadline. If clients need to know more than the
code, the message begins with an error class, in every protocol.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

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

CODES: Final[tuple[ErrorCode, ...]] = get_args(ErrorCode)
CLASSES: Final[tuple[ErrorClass, ...]] = get_args(ErrorClass)


class CodedLine(NamedTuple):
    """An error's line with its code, or None, and the name of the input that is wrong, or ""."""

    code: ErrorCode | None
    field: str
    line: str


def prefix_code(code: ErrorCode, line: str, field: str = "") -> str:
    """Write a code before an error's line. INTERNAL isn't written, because it is the default.

    field: name of the input that is wrong.
    """
    if code == "INTERNAL":
        return line
    return f"{code}({field}): {line}" if field else f"{code}: {line}"


def split_code(line: str) -> CodedLine:
    """Undo `prefix_code`.

    >>> tuple(split_code("UNAVAILABLE: overloaded: try again later"))
    ('UNAVAILABLE', '', 'overloaded: try again later')
    >>> tuple(split_code("INVALID_ARG(seed): input 'seed' must have one value"))
    ('INVALID_ARG', 'seed', "input 'seed' must have one value")
    """
    found = re.match(r"([A-Z_]+)(?:\((\w+)\))?: ", line)
    for code in CODES if found else ():
        if found and found[1] == code:
            return CodedLine(code, found[2] or "", line[found.end() :])
    return CodedLine(None, "", line)


def prefix_class(error_class: ErrorClass | None, line: str) -> str:
    """Write a class before an error's line. None leaves the line unchanged."""
    return line if error_class is None else f"{error_class}: {line}"


def split_class(line: str) -> tuple[ErrorClass | None, str]:
    """Split an error's line into its class, or None, and the rest of the line.

    >>> split_class("overloaded: try again later")
    ('overloaded', 'try again later')
    """
    for error_class in CLASSES:
        if line.startswith(f"{error_class}: "):
            return error_class, line.removeprefix(f"{error_class}: ")
    return None, line
