"""The one thread that looks after all requests: gone clients, deadlines, overdue engine calls.

Triton tells nobody that a client has left; a model has to ask, and each question costs a trip to
the server process. One thread asks for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from bls.triton.background import log_exception

INTERVAL = 0.02  # seconds between two looks at everybody,
INTERVAL_EACH = 0.002  # or more where there are many: 64 then still get a look within a round
IDLE_INTERVAL = 0.5  # and while there is nobody


class Watched(Protocol):
    """Something that must be looked at now and then until it is closed."""

    @property
    def closed(self) -> bool:
        """Whether it needs no more looks."""

    def check(self, now: float) -> None:
        """Look at it; ``now`` is of the monotonic clock."""


class Watcher:
    """Checks whatever was added, until it is closed."""

    def __init__(self, after_each_look: Callable[[], None] = lambda: None) -> None:
        self._watched: set[Watched] = set()
        self._after_each_look = after_each_look
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def add(self, watched: Watched) -> None:
        """Begin to look after ``watched``."""
        with self._lock:
            self._watched.add(watched)
        self._wake.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped:
            watched = self._look()
            if watched:
                time.sleep(max(INTERVAL, watched * INTERVAL_EACH))
            else:
                self._wake.wait(IDLE_INTERVAL)
                self._wake.clear()

    def _look(self) -> int:
        """Check everybody once; return how many there were."""
        with self._lock:
            self._watched = {w for w in self._watched if not w.closed}
            everybody = list(self._watched)
        now = time.monotonic()
        for watched in everybody:
            try:
                watched.check(now)
            except Exception as error:  # noqa: BLE001  the others must still be looked after
                log_exception("looking after a request failed", error)
        self._after_each_look()
        return len(everybody)
