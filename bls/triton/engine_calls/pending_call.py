"""Waiting for calls that cannot be woken, without waiting for ever.

A thread blocked in a BLS call can only be abandoned. So a call is registered before it is made;
the watcher abandons it when it is overdue. Its thread, should it ever come back, learns that nobody
waits for it any more.
"""

from __future__ import annotations

import threading
import time

from tandem.bls.errors import EngineUnavailable

# Threads that may block in a model that does not answer, before it is not called any more.
MAX_ABANDONED_CALLS = 32


class Abandoned(Exception):
    """The call of this thread was abandoned: nobody waits for its result."""


class PendingCall:
    """One blocking call, as seen by those who do not block in it. Times are monotonic seconds."""

    def __init__(self, model: str, request_id: str, timeout: float) -> None:
        self.model = model
        self.request_id = request_id
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout


class AbandonedCalls:
    """Counts, by model, the threads that are blocked in abandoned calls."""

    def __init__(self) -> None:
        self._by_model: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def by_model(self) -> dict[str, int]:
        """Abandoned calls of every model that ever had one."""
        return dict(self._by_model)

    def refuse_if_too_many(self, model: str) -> None:
        """Raise EngineUnavailable rather than block yet another thread."""
        if self._by_model.get(model, 0) >= MAX_ABANDONED_CALLS:
            raise EngineUnavailable(
                model, f"it has left {MAX_ABANDONED_CALLS} calls unanswered; restart the server"
            )

    def count_abandoned(self, model: str) -> None:
        """Count a call that was abandoned."""
        self._change(model, +1)

    def count_returned(self, model: str) -> None:
        """Count an abandoned call that returned after all."""
        self._change(model, -1)

    def _change(self, model: str, by: int) -> None:
        with self._lock:
            self._by_model[model] = self._by_model.get(model, 0) + by


class CallSlot:
    """At most one call under way at a time, and the way to abandon it. Thread-safe."""

    def __init__(self, abandoned: AbandonedCalls) -> None:
        self._abandoned = abandoned
        self._call: PendingCall | None = None
        self._lock = threading.Lock()

    @property
    def call(self) -> PendingCall | None:
        """The call under way."""
        return self._call

    def begin(self, model: str, request_id: str, timeout: float) -> PendingCall:
        """Register a call that is about to be made."""
        self._abandoned.refuse_if_too_many(model)
        call = PendingCall(model, request_id, timeout)
        with self._lock:
            self._call = call
        return call

    def end(self, call: PendingCall) -> None:
        """Take the call back from its thread; raise Abandoned if another thread gave it up."""
        with self._lock:
            pending_call, self._call = (
                self._call is call,
                None if self._call is call else self._call,
            )
        if not pending_call:
            self._abandoned.count_returned(call.model)
            raise Abandoned

    def abandon_if_overdue(self, now: float) -> PendingCall | None:
        """Abandon the call if its deadline has passed; return it, or None."""
        with self._lock:
            call = self._call
            if call is None or now < call.deadline:
                return None
            self._call = None
        self._abandoned.count_abandoned(call.model)
        return call
