"""Tracks blocking calls, so that overdue ones can be abandoned.

A BLS call can't be interrupted, so its thread can only be abandoned. Each call is registered before
it is made, and the watcher abandons it if it is overdue. If the call returns after that, its thread
raises Abandoned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.bls.errors import EngineUnavailable

# Maximum number of threads that block in a model that doesn't answer. Further calls are rejected.
MAX_ABANDONED_CALLS = 32


class Abandoned(Exception):
    """The call of this thread was abandoned, so its result isn't needed."""


class PendingCall:
    """One blocking call. Times are in seconds of the monotonic clock."""

    def __init__(self, model: str, request_id: str, timeout: float) -> None:
        self.model = model
        self.request_id = request_id
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout


class AbandonedCalls:
    """Counts the threads that are blocked in abandoned calls, by model."""

    def __init__(self) -> None:
        self._by_model: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def by_model(self) -> dict[str, int]:
        """Number of abandoned calls, for every model that ever had one."""
        return dict(self._by_model)

    def refuse_if_too_many(self, model: str) -> None:
        """Raise EngineUnavailable if the model has MAX_ABANDONED_CALLS abandoned calls."""
        if self._by_model.get(model, 0) >= MAX_ABANDONED_CALLS:
            raise EngineUnavailable(
                model, f"{MAX_ABANDONED_CALLS} of its calls never returned; restart the server"
            )

    def add(self, model: str, by: int) -> None:
        """Add to a model's count: 1 for an abandoned call, -1 after an abandoned call returned."""
        with self._lock:
            self._by_model[model] = self._by_model.get(model, 0) + by


class CallSlot:
    """Holds at most one pending call, which another thread may abandon. Thread-safe."""

    def __init__(self, abandoned: AbandonedCalls) -> None:
        self._abandoned = abandoned
        self.call: PendingCall | None = None
        self._lock = threading.Lock()

    @contextmanager
    def pending(self, model: str, request_id: str, timeout: float) -> Iterator[PendingCall]:
        """Register a call that is made in the context.

        timeout: seconds. Raises EngineUnavailable if too many calls of the model were abandoned,
        and Abandoned after the context if another thread abandoned this call.
        """
        self._abandoned.refuse_if_too_many(model)
        call = PendingCall(model, request_id, timeout)
        with self._lock:
            self.call = call
        try:
            yield call
        finally:
            with self._lock:
                is_current = self.call is call
                if is_current:
                    self.call = None
            if not is_current:
                self._abandoned.add(call.model, -1)
                raise Abandoned

    def abandon_if_overdue(self, now: float) -> PendingCall | None:
        """Abandon the call if its deadline has passed. Return that call, or None."""
        with self._lock:
            call = self.call
            if call is None or now < call.deadline:
                return None
            self.call = None
        self._abandoned.add(call.model, +1)
        return call
