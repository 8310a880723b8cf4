"""Errors of an engine. The text of each is one line for the caller.

EngineError
├── LoadError             the engine cannot start: the checkpoint or the settings are at fault
├── ResponseError         an answer does not fit into shared memory
├── CancelledError        what the engine runs on gave the call up
└── RequestError          one call asked for something impossible; the text names the input
    ├── UnsupportedError  this engine does not do that, whatever the value
    ├── ClosingError      the engine is shutting down; another one may serve the call
    └── EndedError        what the engine runs on has ended; another one may serve the call
"""

from __future__ import annotations

from typing import ClassVar

from tandem.contract.errors import ErrorCode


class EngineError(Exception):
    """Anything an engine reports on purpose."""

    code: ClassVar[ErrorCode] = "INTERNAL"


class LoadError(EngineError):
    """The engine cannot start."""


class ResponseError(EngineError):
    """A response cannot leave; its call ends."""


class RequestError(EngineError):
    """One call cannot be served; other calls are not concerned."""

    code: ClassVar[ErrorCode] = "INVALID_ARG"


class UnsupportedError(RequestError):
    """One call asked for what this engine does not do."""

    code: ClassVar[ErrorCode] = "UNSUPPORTED"


class ClosingError(RequestError):
    """The engine takes no more calls, and ends those that it has."""

    code: ClassVar[ErrorCode] = "UNAVAILABLE"

    def __init__(self) -> None:
        super().__init__("the engine is shutting down")


class EndedError(RequestError):
    """What the engine runs on has ended."""

    code: ClassVar[ErrorCode] = "UNAVAILABLE"


class CancelledError(EngineError):
    """What the engine runs on gave the call up."""

    code: ClassVar[ErrorCode] = "CANCELLED"


def first_line(error: Exception) -> str:
    r"""Return what somebody else's error says, in one line; its type where it says nothing.

    >>> first_line(ValueError("no such head\n  at layer 3"))
    'no such head'
    >>> first_line(MemoryError())
    'MemoryError'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
