"""Copies of this process that try guides take turns: one of them computes, all others are stopped.

Two of them keep two cores busy, and streams wait: their chunks pass through some threads each, and
each of these has to get a core. One that takes long goes on once no shorter one is left, and this
process does not compile what takes as long.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

# Who was stopped for so long goes on for a while, however many others come.
PATIENCE_SECONDS: Final = 2.0
SLICE_SECONDS: Final = 0.2


@dataclass
class Copy:
    """One of them. goes: it is not stopped. since: when that began. until: when its slice ends."""

    cpu_seconds: float
    goes: bool
    since: float
    until: float = 0.0

    def is_due(self, now: float) -> bool:
        """Whether it was stopped for long, or has just begun to go on after that."""
        return now < self.until or (not self.goes and now - self.since > PATIENCE_SECONDS)


class Turns:
    """Lets the copy go that may take least of a processor, and stops the others. Thread-safe."""

    def __init__(self) -> None:
        self._copies: dict[int, Copy] = {}
        self._here: list[float] = []  # what work of this process may take of a processor
        self._lock = threading.Lock()

    def begin(self, pid: int, cpu_seconds: float) -> None:
        """Take a copy in. cpu_seconds: what it may take."""
        with self._lock:
            self._copies[pid] = Copy(cpu_seconds, goes=True, since=time.monotonic())
            self._settle()

    def goes(self, pid: int) -> bool:
        """Whether it is the turn of a copy that has not ended."""
        with self._lock:
            return self._copies[pid].goes

    def end_of(self, pid: int) -> int | None:
        """Return how it ended, and forget it; None where it has not ended.

        Whoever waits for its end asks again and again: that is when turns change. Raises OSError
        where somebody else was told of its end.
        """
        with self._lock:
            ended = pid
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            finally:
                if ended:
                    del self._copies[pid]
                self._settle()
        return status if ended else None

    @contextmanager
    def at_work(self, cpu_seconds: float) -> Iterator[None]:
        """Stop copies that may take as long while this process does such work itself."""
        with self._lock:
            self._here.append(cpu_seconds)
            self._settle()
        try:
            yield
        finally:
            with self._lock:
                self._here.remove(cpu_seconds)
                self._settle()

    def _settle(self) -> None:
        """Stop all but one, or all where this process works: it cannot be stopped."""
        now = time.monotonic()
        first = min(self._copies, key=lambda pid: self._rank(pid, now), default=None)
        if first is not None and any(s <= self._copies[first].cpu_seconds for s in self._here):
            first = None
        for pid, copy in self._copies.items():
            if copy.goes == (pid == first):
                continue
            if copy.is_due(now):
                copy.until = now + SLICE_SECONDS
            copy.goes, copy.since = not copy.goes, now
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if copy.goes else signal.SIGSTOP)

    def _rank(self, pid: int, now: float) -> tuple[bool, float]:
        copy = self._copies[pid]
        return not copy.is_due(now), copy.cpu_seconds
