"""Turns at something that few may use at once; those who wait for one hold no thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tandem.bls.errors import Overloaded


class Turn:
    """One request's turn: it waits, then it is at work, then it is over."""

    def __init__(self, turns: Turns, work: Callable[[Turn], None], size: int) -> None:
        self.work = work
        self.size = size
        self.over = False
        self._turns = turns

    def withdraw(self) -> None:
        """Wait no more; nothing happens once the work has begun."""
        self._turns.withdraw(self)

    def end(self) -> None:
        """Let the next one go; it is the same whether the work is done or was given up."""
        self._turns.end(self)


class Turns:
    """At most so many at work at once, the others in the order of their coming. Thread-safe.

    max_waiting_bytes: of what those who wait hold; one may always wait.
    """

    def __init__(self, most: int, max_waiting_bytes: int) -> None:
        self._free = most
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[Turn] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def take(self, work: Callable[[Turn], None], size: int) -> Turn:
        """Have ``work`` called now or in its turn, by whoever makes room; it must not block.

        size: bytes that it holds while it waits. Raises Overloaded where they are too many.
        """
        turn = Turn(self, work, size)
        with self._lock:
            held = self._waiting_bytes + size
            if self._waiting and held > self._max_waiting_bytes:
                raise Overloaded(
                    f"overloaded: the texts that wait to be tokenized hold {self._waiting_bytes} "
                    f"bytes, of {self._max_waiting_bytes} that the server keeps for them; try "
                    "again later"
                )
            self._waiting.append(turn)
            self._waiting_bytes = held
        self._go_on()
        return turn

    def withdraw(self, turn: Turn) -> None:
        """Take a turn out of the queue, if it is there."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                self._waiting_bytes -= turn.size

    def end(self, turn: Turn) -> None:
        """Let the next one go, once for each turn."""
        with self._lock:
            self._free += not turn.over
            turn.over = True
        self._go_on()

    def _go_on(self) -> None:
        while (turn := self._next()) is not None:
            turn.work(turn)

    def _next(self) -> Turn | None:
        with self._lock:
            if not self._waiting or not self._free:
                return None
            self._free -= 1
            turn = self._waiting.popleft()
            self._waiting_bytes -= turn.size
            return turn
