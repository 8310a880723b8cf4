"""Waits for calls that cannot be interrupted, up to a deadline.

A thread blocked in a BLS call can only be abandoned. So a call is registered before it is made, and
the watcher abandons it when it is overdue. If its thread ever returns, it raises Abandoned.
"""

from __future__ import annotations

import threading
import time

from tandem.bls.errors import EngineUnavailable

# Threads that may block in a model that does not answer. After that it is not called again.
MAX_ABANDONED_CALLS = 32


class Abandoned(Exception):
    """The call of this thread was abandoned: its result is not needed."""


class PendingCall:
    """One blocking call, as other threads see it. Times are seconds of the monotonic clock."""

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
        """Raise EngineUnavailable if no more threads may block in a model."""
        if self._by_model.get(model, 0) >= MAX_ABANDONED_CALLS:
            raise EngineUnavailable(
                model, f"{MAX_ABANDONED_CALLS} of its calls never returned; restart the server"
            )

    def add(self, model: str, by: int) -> None:
        """Count a call that was abandoned (+1), or an abandoned one that has returned (-1)."""
        with self._lock:
            self._by_model[model] = self._by_model.get(model, 0) + by


class CallSlot:
    """Holds at most one pending call, which another thread may abandon. Thread-safe."""

    def __init__(self, abandoned: AbandonedCalls) -> None:
        self._abandoned = abandoned
        self._call: PendingCall | None = None
        self._lock = threading.Lock()

    @property
    def call(self) -> PendingCall | None:
        """The current call."""
        return self._call

    def begin(self, model: str, request_id: str, timeout: float) -> PendingCall:
        """Register a call that is about to be made; raise EngineUnavailable."""
        self._abandoned.refuse_if_too_many(model)
        call = PendingCall(model, request_id, timeout)
        with self._lock:
            self._call = call
        return call

    def end(self, call: PendingCall) -> None:
        """Note that the call has returned; raise Abandoned if another thread abandoned it."""
        with self._lock:
            is_current = self._call is call
            if is_current:
                self._call = None
        if not is_current:
            self._abandoned.add(call.model, -1)
            raise Abandoned

    def abandon_if_overdue(self, now: float) -> PendingCall | None:
        """Abandon the call if its deadline has passed; return it, or None."""
        with self._lock:
            call = self._call
            if call is None or now < call.deadline:
                return None
            self._call = None
        self._abandoned.add(call.model, +1)
        return call
