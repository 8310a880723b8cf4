"""Bounds how many requests use something at once; those that wait hold no thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tandem.bls.errors import Overloaded


class Permit:
    """One request's permit to work: it waits, then it is held, then it is over."""

    def __init__(
        self, limiter: ConcurrencyLimiter, work: Callable[[Permit], None], size: int
    ) -> None:
        self.work = work
        self.size = size
        self.over = False
        self._limiter = limiter

    def withdraw(self) -> None:
        """Wait no more; nothing happens once the work has begun."""
        self._limiter.withdraw(self)

    def end(self) -> None:
        """Let the next one go, whether the work is done or was abandoned."""
        self._limiter.end(self)

    def give_back(self) -> None:
        """Leave it to the next one, from within ``work``, which could not begin."""
        self._limiter.give_back(self)


class ConcurrencyLimiter:
    """At most so many permits at once; others wait in the order of arrival. Thread-safe.

    max_waiting_bytes: bound on what those who wait hold; one may always wait. waiting: what they
    are, for the error.
    """

    def __init__(self, most: int, max_waiting_bytes: int, waiting: str) -> None:
        self._what = waiting
        self._free = most
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[Permit] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def acquire(self, work: Callable[[Permit], None], size: int) -> Permit:
        """Have ``work`` called now, or by the thread that frees a permit; it must not block.

        size: bytes that it holds while it waits. Raises Overloaded where they are too many.
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
        self._go_on()
        return permit

    def withdraw(self, permit: Permit) -> None:
        """Take a permit out of the queue, if it is there."""
        with self._lock:
            if permit in self._waiting:
                self._waiting.remove(permit)
                self._waiting_bytes -= permit.size

    def end(self, permit: Permit) -> None:
        """Let the next one go, once for each permit."""
        self.give_back(permit)
        self._go_on()

    def give_back(self, permit: Permit) -> None:
        """Free a permit; the caller of its work starts the next one."""
        with self._lock:
            self._free += not permit.over
            permit.over = True

    def _go_on(self) -> None:
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
