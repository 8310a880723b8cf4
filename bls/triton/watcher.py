"""The one thread that looks after all requests: gone clients, deadlines, overdue engine calls.

Triton does not say that a client has left; a model has to ask, and each question costs a trip to
the server process. One thread asks for all. Without it nobody is cancelled, nothing is overdue and
no metric grows: so it outlives every error, and waits for nobody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tandem.bls.triton.background import log_exception

INTERVAL = 0.02  # seconds between two looks at everybody,
INTERVAL_EACH = 0.002  # or more where there are many: 64 then still get a look within a round
IDLE_INTERVAL = 0.5  # and while there is nobody
LOG_INTERVAL = 10.0  # between two tracebacks of what may go wrong in look after look


class Watched(Protocol):
    """Something that must be looked at now and then until it is closed."""

    @property
    def closed(self) -> bool:
        """Whether it needs no more looks."""

    def check(self, now: float) -> None:
        """Look at it; ``now`` is of the monotonic clock."""


class Watcher:
    """Checks whatever was added, until it is closed; then does what is due after each look.

    watchers: how many there are of the model; together they ask no more questions than one would.
    """

    def __init__(self, *after_each_look: Callable[[], None], watchers: int = 1) -> None:
        self._interval_each = INTERVAL_EACH * watchers
        self._watched: set[Watched] = set()
        self._after_each_look = after_each_look
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._may_log: dict[str, float] = {}
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
                time.sleep(max(INTERVAL, watched * self._interval_each))
            else:
                self._wake.wait(IDLE_INTERVAL)
                self._wake.clear()

    def _look(self) -> int:
        """Check everybody once; return how many there were."""
        with self._lock:
            everybody = list(self._watched)
        now = time.monotonic()
        for watched in everybody:
            self._try("looking after a request failed", partial(self._check, watched, now))
        for due in self._after_each_look:
            self._try("publishing metrics failed", due)
        return len(everybody)

    def _check(self, watched: Watched, now: float) -> None:
        if watched.closed:
            with self._lock:
                self._watched.discard(watched)
        else:
            watched.check(now)

    def _try(self, what: str, work: Callable[[], None]) -> None:
        """Do the work; whatever it raises ends neither this thread nor the look."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  the others must still be looked after
            now = time.monotonic()
            if now >= self._may_log.get(what, 0.0):
                self._may_log[what] = now + LOG_INTERVAL
                log_exception(what, error)
