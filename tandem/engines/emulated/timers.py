"""The clock of emulated steps."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

Action: TypeAlias = Callable[[], None]


class Timer(Protocol):
    """Runs actions at given times, in nanoseconds of its own clock."""

    def now_ns(self) -> int: ...

    def wall_ns(self) -> int:
        """Return the time of the system clock in nanoseconds."""

    def at(self, due_ns: int, action: Action) -> None:
        """Run `action` at the given time, or as soon as possible afterwards."""

    def close(self) -> None:
        """Drop all pending actions and run no more."""


class WallTimer:
    """Real time, kept by one thread to about 0.1 ms on an idle machine.

    A sleeping thread wakes up about 0.1 ms late, especially in a virtual machine, and an action
    takes about as long. So this thread wakes up earlier. Spinning would be more exact, but would
    take cores from other processes.
    """

    _EARLY_NS = 150_000

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[tuple[int, int, Action]] = []
        self._order = itertools.count()  # orders events with equal times
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="emulated-steps", daemon=True)
        self._thread.start()

    @staticmethod
    def now_ns() -> int:
        return time.monotonic_ns()

    @staticmethod
    def wall_ns() -> int:
        return time.time_ns()

    def at(self, due_ns: int, action: Action) -> None:
        with self._changed:
            heapq.heappush(self._events, (due_ns, next(self._order), action))
            if self._events[0][2] is action:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        _sleep_precisely()
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Action | None:
        """Wait until the next event is due, and remove it. Return None if the timer is closed."""
        with self._changed:
            while not self._closing:
                left_ns = None
                if self._events:
                    left_ns = self._events[0][0] - self._EARLY_NS - self.now_ns()
                    if left_ns <= 0:
                        return heapq.heappop(self._events)[2]
                self._changed.wait(left_ns and left_ns / 1e9)
            return None


def _sleep_precisely() -> None:
    """Turn off Linux's default timer slack of 0.05 ms for this thread."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, 1 ns
