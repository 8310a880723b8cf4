"""Turns at something that few may use at once; those who wait for one hold no thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tandem.bls.errors import Overloaded


class Permit:
    """One request's turn: it waits, then it is at work, then it is over."""

    def __init__(
        self, turns: ConcurrencyLimiter, work: Callable[[Permit], None], size: int
    ) -> None:
        self.work = work
        self.size = size
        self.over = False
        self._tokenizer_limiter = turns

    def withdraw(self) -> None:
        """Wait no more; nothing happens once the work has begun."""
        self._tokenizer_limiter.withdraw(self)

    def end(self) -> None:
        """Let the next one go; it is the same whether the work is done or was given up."""
        self._tokenizer_limiter.end(self)


class ConcurrencyLimiter:
    """At most so many at work at once, the others in the order of their coming. Thread-safe.

    max_waiting_bytes: of what those who wait hold; one may always wait.
    """

    def __init__(self, most: int, max_waiting_bytes: int) -> None:
        self._free = most
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[Permit] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def take(self, work: Callable[[Permit], None], size: int) -> Permit:
        """Have ``work`` called now or in its turn, by whoever makes room; it must not block.

        size: bytes that it holds while it waits. Raises Overloaded where they are too many.
        """
        permit = Permit(self, work, size)
        with self._lock:
            held = self._waiting_bytes + size
            if self._waiting and held > self._max_waiting_bytes:
                raise Overloaded(
                    f"overloaded: the texts that wait to be tokenized hold {self._waiting_bytes} "
                    f"bytes, of {self._max_waiting_bytes} that the server keeps for them; try "
                    "again later"
                )
            self._waiting.append(permit)
            self._waiting_bytes = held
        self._go_on()
        return permit

    def withdraw(self, permit: Permit) -> None:
        """Take a turn out of the queue, if it is there."""
        with self._lock:
            if permit in self._waiting:
                self._waiting.remove(permit)
                self._waiting_bytes -= permit.size

    def end(self, permit: Permit) -> None:
        """Let the next one go, once for each turn."""
        with self._lock:
            self._free += not permit.over
            permit.over = True
        self._go_on()

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
