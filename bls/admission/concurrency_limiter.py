"""Limits how many requests use something at once. Waiting requests hold no thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tandem.bls.errors import Overloaded


class Permit:
    """One request's permit to work: it waits, is used, and ends."""

    def __init__(
        self, limiter: ConcurrencyLimiter, work: Callable[[Permit], None], size: int
    ) -> None:
        self.work = work
        self.size = size
        self.over = False
        self._limiter = limiter

    def withdraw(self) -> None:
        """Leave the queue; nothing happens once the work has begun."""
        self._limiter.withdraw(self)

    def end(self) -> None:
        """Free the permit, once, and start the next work."""
        self._limiter.end(self)

    def give_back(self) -> None:
        """Free the permit from within its ``work``, which could not begin."""
        self._limiter.give_back(self)


class ConcurrencyLimiter:
    """Gives a limited number of permits, in order of arrival. Thread-safe.

    max_waiting_bytes: limit of the waiting requests' sizes; one may always wait. waiting: what
    waits, for the error.
    """

    def __init__(self, most: int, max_waiting_bytes: int, waiting: str) -> None:
        self._what = waiting
        self._free = most
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[Permit] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def acquire(self, work: Callable[[Permit], None], size: int) -> Permit:
        """Call ``work`` now, or from the thread that frees a permit; it must not block.

        size: bytes that the request holds while it waits. Raises Overloaded if they are too many.
        """
        permit = Permit(self, work, size)
        with self._lock:
            held = self._waiting_bytes + size
            if self._waiting and held > self._max_waiting_bytes:
                raise Overloaded(
                    f"the {self._what} hold {self._waiting_bytes} bytes, of "
                    f"{self._max_waiting_bytes} that the server keeps for them; try again later"
                )
            self._waiting.append(permit)
            self._waiting_bytes = held
        self._work()
        return permit

    def withdraw(self, permit: Permit) -> None:
        with self._lock:
            if permit in self._waiting:
                self._waiting.remove(permit)
                self._waiting_bytes -= permit.size

    def end(self, permit: Permit) -> None:
        self.give_back(permit)
        self._work()

    def give_back(self, permit: Permit) -> None:
        with self._lock:
            self._free += not permit.over
            permit.over = True

    def _work(self) -> None:
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
