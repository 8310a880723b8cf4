"""Errors of an engine. Each message is one line for the caller.

EngineError
├── LoadError             the engine cannot start, because of its checkpoint or settings
├── ResponseError         an answer doesn't fit into shared memory
├── UnreachableError      a remote engine can't be reached
├── CancelledError        the engine's library aborted the call
└── RequestError          the call cannot be served; the message names the input
    ├── UnsupportedError  the engine doesn't support the input, whatever its value
    ├── ClosingError      the engine is shutting down; another engine may serve the call
    └── EndedError        the engine's process has ended; another engine may serve the call
"""

from __future__ import annotations

import re
from typing import ClassVar

from tandem.contract.errors import ErrorCode


class EngineError(Exception):
    """Base class of all errors that an engine reports to a caller."""

    code: ClassVar[ErrorCode] = "INTERNAL"


class LoadError(EngineError):
    """The engine cannot start."""


class UnreachableError(EngineError):
    """A remote engine can't be reached."""

    code: ClassVar[ErrorCode] = "UNAVAILABLE"


class ResponseError(EngineError):
    """A response cannot be sent, so its call ends."""


class RequestError(EngineError):
    """One call cannot be served. Other calls aren't affected.

    field: name of the input that is wrong; "" if the error isn't about one input.
    """

    code: ClassVar[ErrorCode] = "INVALID_ARG"

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class UnsupportedError(RequestError):
    """The engine doesn't support an input of the call, whatever its value."""

    code: ClassVar[ErrorCode] = "UNSUPPORTED"


class ClosingError(RequestError):
    """The engine accepts no more calls and ends the running ones."""

    code: ClassVar[ErrorCode] = "UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("the engine is shutting down")


class EndedError(RequestError):
    """The engine's process has ended."""

    code: ClassVar[ErrorCode] = "UNAVAILABLE"


class CancelledError(EngineError):
    """The engine's library aborted the call."""

    code: ClassVar[ErrorCode] = "CANCELLED"


def first_line(error: Exception) -> str:
    r"""Return the first line of a library's error message, or the error's type if it has none.

    If the line ends with a colon, the cause is in the next one.

    >>> first_line(ValueError("no such head\n  at layer 3"))
    'no such head'
    >>> first_line(ValueError("wrong field:\n  no such head"))
    'wrong field: no such head'
    >>> first_line(MemoryError())
    'MemoryError'
    """
    text = str(error).strip() or type(error).__name__
    return re.sub(r":\s*\n\s*", ": ", text).splitlines()[0]


def typed_line(error: Exception) -> str:
    """Return an error's type and the first line of its message, if it has one.

    >>> typed_line(KeyError("rope"))
    "KeyError: 'rope'"
    >>> typed_line(MemoryError())
    'MemoryError'
    """
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"
