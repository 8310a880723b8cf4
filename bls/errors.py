"""What can go wrong in the loop, who gets an error, and its code and class (contract.errors).

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
    └── EngineRefused        INVALID_ARG  an engine will not take this call, now or later
        └── DrafterFailed    INVALID_ARG  a deployment's own drafter has a fault: drafts end
Cancelled                    CANCELLED    the client has gone; nobody gets it

UNAVAILABLE is what balancers and clients send again by themselves: so it means that another server
may answer. A request that was under way may have streamed part of its answer before it.
Triton has no code for a deadline. A request that used its time up is INTERNAL, because proxies
retry CANCELLED too, and it would use its time up again.
"""

from __future__ import annotations

from typing import TypeAlias

from tandem.contract.errors import ErrorClass, ErrorCode, classified


class ServingError(Exception):
    """An error whose text is one line, fit for a client: what, where, and how to fix it."""

    code: ErrorCode = "INTERNAL"
    error_class: ErrorClass | None = None

    @property
    def line(self) -> str:
        """What a client is told: the text, behind its class where it has one."""
        return classified(self.error_class, str(self))


class BadRequest(ServingError):
    """A request that cannot be served as it is; the text names the input."""

    code = "INVALID_ARG"


class GuideRefused(BadRequest):
    """A request whose guide cannot be compiled; the text names the input."""

    error_class = "invalid_guide"


class Overloaded(ServingError):
    """The server has as many requests as it can hold."""

    code = "UNAVAILABLE"
    error_class = "overloaded"


class DeadlineExceeded(ServingError):
    """The time that the client or the profile gave the request has passed."""

    error_class = "deadline_exceeded"


class AnswerNotSent(ServingError):
    """An answer exists but could not be handed to Triton."""


class GuideFailed(ServingError):
    """An answer cannot go on by its guide."""

    code = "INVALID_ARG"
    error_class = "invalid_guide"


class EngineCallError(ServingError):
    """An engine call failed. ``model`` is the Triton model's name, ``what`` its own words."""

    def __init__(self, model: str, what: str, code: ErrorCode = "INTERNAL") -> None:
        super().__init__(f"model '{model}' failed: {what}")
        self.model = model
        self.what = what
        self.code = code
        if code == "UNAVAILABLE":
            self.error_class = "model_unavailable"


class EngineTimeout(EngineCallError):
    """An engine call had no answer in time; the thread that made it may be blocked forever."""

    error_class = "model_timeout"

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(model, f"no answer within {seconds:g} s")


class EngineUnavailable(EngineCallError):
    """Too many calls of this engine were abandoned: it is not called again."""

    def __init__(self, model: str, what: str) -> None:
        super().__init__(model, what, "UNAVAILABLE")


class EngineRefused(EngineCallError):
    """The engine is well and refused the call's arguments: nothing is wrong for other requests."""

    def __init__(self, model: str, what: str, code: ErrorCode = "INVALID_ARG") -> None:
        super().__init__(model, what, code)


class DrafterFailed(EngineRefused):
    """A drafter raised, or proposed what cannot be verified: its request goes on without drafts."""

    def __init__(self, drafter: str, what: str) -> None:
        super().__init__(drafter, what)
        self.args = (f"drafter '{drafter}' failed: {what}",)


class Cancelled(Exception):
    """The client cancelled or disconnected."""

    code: ErrorCode = "CANCELLED"
    line = "the request was cancelled"

    def __str__(self) -> str:
        return self.line


# What a request can end with before its natural end.
Failure: TypeAlias = ServingError | Cancelled
