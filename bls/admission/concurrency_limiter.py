"""Limits the number of concurrent tokenizer calls. Waiting requests don't block a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tandem.bls.errors import Overloaded


class ConcurrencyLimiter:
    """Issues a limited number of permits in order of arrival. Thread-safe.

    max_permits: maximum number of permits in use. max_waiting_bytes: limit on the total size of the
    waiting requests; a single request may always wait.
    """

    def __init__(self, max_permits: int, max_waiting_bytes: int) -> None:
        self._free = max_permits
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[Permit] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def acquire(self, work: Callable[[Permit], None], size: int) -> Permit:
        """Call ``work`` now, or later from the thread that frees a permit.

        ``work`` must not block. size: number of bytes that the request holds while it waits. Raises
        Overloaded if the waiting requests would exceed ``max_waiting_bytes``.
        """
        permit = Permit(self, work, size)
        with self._lock:
            held = self._waiting_bytes + size
            if self._waiting and held > self._max_waiting_bytes:
                raise Overloaded(
                    f"{self._waiting_bytes} bytes of requests are waiting; the limit is "
                    f"{self._max_waiting_bytes}; try again later"
                )
            self._waiting.append(permit)
            self._waiting_bytes = held
        self._start_waiting()
        return permit

    def _start_waiting(self) -> None:
        while (permit := self._next()) is not None:
            permit.work(permit)

    def _next(self) -> Permit | None:
        with self._lock:
            if not self._waiting or not self._free:
                return None
            self._free -= 1
            permit = self._waiting.popleft()
            self._waiting_bytes -= permit.size
            return permit


class Permit:
    """A request's permit to use the resource, from the time it is queued until it ends."""

    def __init__(
        self, limiter: ConcurrencyLimiter, work: Callable[[Permit], None], size: int
    ) -> None:
        self.work = work
        self.size = size
        self._limiter = limiter
        self._released = False

    def leave_queue(self) -> None:
        """Leave the queue. Does nothing after the work has begun."""
        limiter = self._limiter
        with limiter._lock:
            if self in limiter._waiting:
                limiter._waiting.remove(self)
                limiter._waiting_bytes -= self.size

    def release(self) -> None:
        """Free the permit and start the next waiting request. A second call does nothing."""
        self.release_unused()
        self._limiter._start_waiting()

    def release_unused(self) -> None:
        """Free the permit from inside ``work`` if the work can't begin. Starts no other request."""
        with self._limiter._lock:
            self._limiter._free += not self._released
            self._released = True
