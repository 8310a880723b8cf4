"""What can go wrong in the loop, and who hears of it.

TandemError             one line that a client may read
├── BadRequest          an input is missing, out of bounds or contradicts another
├── Overloaded          no room, and the queue is full
├── DeadlineExceeded    the request ran out of its time
└── EngineError         an engine failed: the draft costs only speed, the target the request
    ├── EngineTimeout   an engine did not answer in time
    └── EngineRefused   an engine will not take this call; the same one would be refused again
Cancelled               the client has gone; nobody hears of it
"""

from __future__ import annotations


class TandemError(Exception):
    """An error whose text is one line, fit for a client: what, where, and how to mend it."""


class BadRequest(TandemError):
    """A request that cannot be served as it is; the text names the input."""


class Overloaded(TandemError):
    """The server has as many requests as it can carry."""


class DeadlineExceeded(TandemError):
    """The time that the client or the profile gave the request has passed."""


class EngineError(TandemError):
    """An engine call failed. ``model`` is the Triton model's name."""

    def __init__(self, model: str, what: str) -> None:
        super().__init__(f"model '{model}' failed: {what}")
        self.model = model
        self.what = what


class EngineTimeout(EngineError):
    """An engine call had no answer in time; whoever made it may be blocked for good."""

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(model, f"no answer within {seconds:g} s")


class EngineRefused(EngineError):
    """The engine is well and refused the call's arguments: nothing is wrong for other requests."""


class Cancelled(Exception):
    """The client cancelled or disconnected."""
