"""Blocking calls that another thread can abandon.

A BLS call can't be interrupted, so its thread can only be abandoned. Each call is registered before
it is made, and the watcher abandons it if it is overdue. If the call returns after that, its thread
raises Abandoned.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from tandem.bls.errors import Abandoned, EngineTimeout, Failure
from tandem.bls.triton.engine_calls.calls import Calls


class PendingCall(NamedTuple):
    """A call that blocks its thread. Times are in seconds of the monotonic clock."""

    model: str
    request_id: str
    timeout: float
    deadline: float


class CallSlot:
    """Makes blocking calls, one at a time. Other threads may abandon the current call.

    call: the current call. interruption: if set, new calls raise it.
    """

    def __init__(self, calls: Calls) -> None:
        self.call: PendingCall | None = None
        self.interruption: Failure | None = None
        self._calls = calls
        self._lock = threading.Lock()

    def infer(
        self,
        model: str,
        request: Any,
        *,
        timeout: float,
        request_id: str = "",
        decoupled: bool = False,
        may_be_empty: bool = False,
    ) -> Any:
        """Make a call and return its response (see ``Calls.infer``). timeout: seconds.

        Raises Abandoned if another thread abandoned the call, and EngineUnavailable if too many
        calls of the model were abandoned.
        """
        self._calls.reject_if_too_many_abandoned(model)
        call = PendingCall(model, request_id, timeout, time.monotonic() + timeout)
        with self._lock:
            self.call = call
        try:
            if self.interruption is not None:
                raise self.interruption
            return self._calls.infer(model, request, decoupled=decoupled, may_be_empty=may_be_empty)
        finally:
            with self._lock:
                is_current = self.call is call
                if is_current:
                    self.call = None
            if not is_current:
                self._calls.count_abandoned(model, -1)
                raise Abandoned

    def check(self, now: float) -> EngineTimeout | None:
        """Abandon the call if its deadline has passed. Return the error of that call, or None."""
        with self._lock:
            call = self.call
            if call is None or now < call.deadline:
                return None
            self.call = None
        self._calls.count_abandoned(call.model, +1)
        return EngineTimeout(call.model, call.timeout)
