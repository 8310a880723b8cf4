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
    """Real time, kept by one thread to within tens of microseconds on an idle machine.

    A sleeping thread wakes up about 0.1 ms late, especially in a virtual machine. So this thread
    wakes up earlier: by the median of that delay, which it estimates, plus the usual duration of an
    action. Spinning would be more exact, but would take cores from other processes.
    """

    _ACTION_NS = 100_000
    _MOST_NS = 300_000  # longer delays are stalls of the machine; waking earlier wouldn't help
    _STEP_NS = 5_000

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[tuple[int, int, Action]] = []
        self._order = itertools.count()  # orders events with equal times
        self._late_ns = 100_000
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
        while True:
            with self._changed:
                while not self._closing and not self._near():
                    self._sleep()
                if self._closing:
                    return
                _, _, action = heapq.heappop(self._events)
            action()

    def _near(self) -> bool:
        return bool(self._events) and self._events[0][0] - self.now_ns() <= self._ACTION_NS

    def _sleep(self) -> None:
        """Sleep until just before the next event, or until an earlier event is added.

        After a full sleep, update the estimate of how late a sleeping thread wakes up.
        """
        if not self._events:
            self._changed.wait()
            return
        wake_ns = self._events[0][0] - self._ACTION_NS
        sleep_ns = wake_ns - self._late_ns - self.now_ns()
        if not self._changed.wait(max(0, sleep_ns) / 1e9) and sleep_ns > 0:
            # Fixed-size steps up or down converge to the median.
            step_ns = self._STEP_NS if self.now_ns() > wake_ns else -self._STEP_NS
            self._late_ns = min(self._MOST_NS, max(0, self._late_ns + step_ns))


def _sleep_precisely() -> None:
    """Turn off Linux's default timer slack of 0.05 ms for this thread."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, 1 ns
