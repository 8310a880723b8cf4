"""The loop's errors with their codes and classes (contract.errors).

ServingError                 INTERNAL     one line that a client may read
├── BadRequest               INVALID_ARG  an input is missing, out of bounds, contradicts another
│   └── GuideRefused         INVALID_ARG  invalid_guide: the request's guide cannot be compiled
├── Overloaded               UNAVAILABLE  overloaded: nothing is free, and the queue is full
├── DeadlineExceeded         INTERNAL     deadline_exceeded: the request ran out of its time
├── AnswerNotSent            INTERNAL     the answer does not fit into shared memory
├── GuideFailed              INVALID_ARG  invalid_guide: it became too complex, or a dead end
└── EngineCallError          the code it  an engine failed: the draft costs only speed, the target
    │                        came with    the request
    ├── EngineTimeout        INTERNAL     model_timeout: an engine did not answer in time
    ├── EngineUnavailable    UNAVAILABLE  model_unavailable: an engine is not called any more
    └── EngineRefused        INVALID_ARG  an engine rejects this call, now and later
        └── DrafterFailed    INVALID_ARG  a deployment's own drafter has a fault: drafts end
Cancelled                    CANCELLED    the client has left; it is not sent

Balancers and clients retry UNAVAILABLE by themselves, so it means that another server may answer. A
request may have streamed part of its answer before it. Triton has no code for a deadline: it is
INTERNAL, because proxies also retry CANCELLED, and the retry would exceed its deadline too.
"""

from __future__ import annotations

from typing import TypeAlias

from tandem.contract.errors import ErrorClass, ErrorCode, classified


class ServingError(Exception):
    """Base of errors whose message is one line for clients: what, where, and how to fix it."""

    code: ErrorCode = "INTERNAL"
    error_class: ErrorClass | None = None

    @property
    def line(self) -> str:
        """Line that clients read: the message, with the error's class in front if it has one."""
        return classified(self.error_class, str(self))


class BadRequest(ServingError):
    """The request is invalid. The message names the input."""

    code = "INVALID_ARG"


class GuideRefused(BadRequest):
    """The request's guide cannot be compiled. The message names the input."""

    error_class = "invalid_guide"


class Overloaded(ServingError):
    """The queue is full. HTTP clients of the gateway get 429."""

    code = "UNAVAILABLE"
    error_class = "overloaded"


class DeadlineExceeded(ServingError):
    """The request exceeded the timeout of its client or of the profile."""

    error_class = "deadline_exceeded"


class AnswerNotSent(ServingError):
    """The answer is complete but could not be passed to Triton."""


class GuideFailed(ServingError):
    """An answer cannot continue under its guide."""

    code = "INVALID_ARG"
    error_class = "invalid_guide"


class EngineCallError(ServingError):
    """An engine call failed. ``model``: name of the Triton model. ``what``: its error message."""

    def __init__(self, model: str, what: str, code: ErrorCode = "INTERNAL") -> None:
        super().__init__(f"model '{model}' failed: {what}")
        self.model = model
        self.what = what
        self.code = code
        if code == "UNAVAILABLE":
            self.error_class = "model_unavailable"


class EngineTimeout(EngineCallError):
    """An engine did not answer in time; the calling thread may be blocked forever."""

    error_class = "model_timeout"

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(model, f"no response within {seconds:g} s")


class EngineUnavailable(EngineCallError):
    """The engine is disabled because too many of its calls were abandoned."""

    def __init__(self, model: str, what: str) -> None:
        super().__init__(model, what, "UNAVAILABLE")


class EngineRefused(EngineCallError):
    """The engine is healthy but rejected the call's arguments. Other requests are not affected."""

    def __init__(self, model: str, what: str, code: ErrorCode = "INVALID_ARG") -> None:
        super().__init__(model, what, code)


class DrafterFailed(EngineRefused):
    """A drafter raised or proposed an unverifiable draft. Its request continues without drafts."""

    def __init__(self, drafter: str, what: str) -> None:
        super().__init__(drafter, what)
        self.args = (f"drafter '{drafter}' failed: {what}",)


class Cancelled(Exception):
    """The client cancelled or disconnected."""

    code: ErrorCode = "CANCELLED"
    line = "the request was cancelled"

    def __str__(self) -> str:
        return self.line


# What a request can end with before its answer is complete.
Failure: TypeAlias = ServingError | Cancelled
