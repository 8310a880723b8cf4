"""The loop's errors, with their Triton codes and error classes (`tandem.contract.errors`).

ServingError                 INTERNAL     base class; the message is one line for clients
├── BadRequest               INVALID_ARG  an input is missing, invalid, or contradicts another one
│   └── GuideRejected        INVALID_ARG  invalid_guide: the request's guide can't be compiled
├── Overloaded               UNAVAILABLE  overloaded: the queue is full, or no thread is free
├── DeadlineExceeded         INTERNAL     deadline_exceeded: the request exceeded its timeout
├── AnswerNotSent            INTERNAL     the answer doesn't fit into shared memory
├── GuideFailed              INVALID_ARG  invalid_guide: too complex, or no token is allowed
└── EngineCallError          the engine's an engine failed; only failures of the target fail the
    │                        code         request
    ├── EngineTimeout        INTERNAL     model_timeout: an engine didn't answer in time
    ├── EngineUnavailable    UNAVAILABLE  model_unavailable: calls of this engine are disabled
    └── RejectedByEngine     INVALID_ARG  the engine rejected the call and would reject it again
Cancelled                    CANCELLED    the client disconnected or sent `stop`

Load balancers and clients retry UNAVAILABLE automatically, so it is used only if another server may
succeed. Part of the answer may have been streamed before it. Triton has no code for deadlines.
DeadlineExceeded uses INTERNAL because proxies retry CANCELLED too, and a retry would also exceed
the deadline.
"""

from __future__ import annotations

from typing import TypeAlias

from tandem.contract.errors import ErrorClass, ErrorCode, prefix_class


class ServingError(Exception):
    """Base of errors whose message is one line for clients: what, where, and how to fix it.

    field: name of the input that is wrong; "" if the error isn't about one input.
    """

    code: ErrorCode = "INTERNAL"
    error_class: ErrorClass | None = None

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field

    @property
    def line(self) -> str:
        """The line that clients get: the message, after the error's class if it has one."""
        return prefix_class(self.error_class, str(self))


class BadRequest(ServingError):
    """The request is invalid. The message names the input."""

    code = "INVALID_ARG"


class GuideRejected(BadRequest):
    """The request's guide can't be compiled. The message names the input."""

    error_class = "invalid_guide"


class Overloaded(ServingError):
    """The queue is full, or the machine is too busy. The gateway returns 429."""

    code = "UNAVAILABLE"
    error_class = "overloaded"


class DeadlineExceeded(ServingError):
    """The request exceeded the timeout of its client or of the profile."""

    error_class = "deadline_exceeded"


class AnswerNotSent(ServingError):
    """The answer is complete but couldn't be passed to Triton."""


class GuideFailed(ServingError):
    """The answer can't continue under its guide."""

    code = "INVALID_ARG"
    error_class = "invalid_guide"


class EngineCallError(ServingError):
    """An engine call failed. model: name of the Triton model. what: its error message."""

    def __init__(
        self, model: str, what: str, code: ErrorCode = "INTERNAL", field: str = ""
    ) -> None:
        super().__init__(f"model '{model}' failed: {what}", field)
        self.model = model
        self.what = what
        self.code = code
        if code == "UNAVAILABLE":
            self.error_class = "model_unavailable"


class EngineTimeout(EngineCallError):
    """An engine didn't answer in time. The calling thread may stay blocked."""

    error_class = "model_timeout"

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(model, f"no response within {seconds:g} s")


class EngineUnavailable(EngineCallError):
    """The engine is disabled because too many of its calls were abandoned."""

    def __init__(self, model: str, what: str) -> None:
        super().__init__(model, what, "UNAVAILABLE")


class RejectedByEngine(EngineCallError):
    """The engine is healthy but rejected the call's arguments. Other requests are not affected."""

    def __init__(
        self, model: str, what: str, code: ErrorCode = "INVALID_ARG", field: str = ""
    ) -> None:
        super().__init__(model, what, code, field)


class Cancelled(Exception):
    """The client cancelled or disconnected."""

    code: ErrorCode = "CANCELLED"
    field = ""
    line = "the request was cancelled"

    def __str__(self) -> str:
        return self.line


# The errors that end a request before its answer is complete.
Failure: TypeAlias = ServingError | Cancelled


class Abandoned(BaseException):
    """The call of this thread was abandoned, so its result isn't needed. Only its thread ends."""


class Interrupted(BaseException):
    """The sequence of this thread was interrupted, so its result isn't needed."""
