"""Errors of an engine. The text of each is one line for the caller.

EngineError
├── LoadError             the engine cannot start: the checkpoint or the settings are at fault
├── ResponseError         an answer does not fit into shared memory
├── CancelledError        the engine's library aborted the call
└── RequestError          one call asked for something impossible; the text names the input
    ├── UnsupportedError  this engine does not do that, whatever the value
    ├── ClosingError      the engine is shutting down; another engine may serve the call
    └── EndedError        the engine's process has ended; another engine may serve the call
"""

from __future__ import annotations

from typing import ClassVar

from tandem.contract.errors import ErrorCode


class EngineError(Exception):
    """Base of all errors that an engine reports to a caller."""

    code: ClassVar[ErrorCode] = "INTERNAL"


class LoadError(EngineError):
    """The engine cannot start."""


class ResponseError(EngineError):
    """A response cannot be sent, so its call ends."""


class RequestError(EngineError):
    """One call cannot be served; other calls are not affected."""

    code: ClassVar[ErrorCode] = "INVALID_ARG"


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
    r"""Return the first line of a library's error, or its type if it has no message.

    >>> first_line(ValueError("no such head\n  at layer 3"))
    'no such head'
    >>> first_line(MemoryError())
    'MemoryError'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
