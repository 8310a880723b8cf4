"""Background threads, the server's log, and the thread that checks all requests.

Triton doesn't notify a model that a client has left. The model has to ask (`Sender.is_cancelled`),
and each question is a call to the server process. The `Watcher` asks for all requests, through
`RequestState.check` in the stream entry and `_Forwarded.check` in the other entries. Without it,
no request is cancelled, no call times out, and no metric changes. So its thread survives every
error, and never waits for an engine or a client.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Protocol

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import Overloaded


def run_in_background(
    work: Callable[[], None], on_rejected: Callable[[Overloaded], None] | None = None
) -> None:
    """Run ``work`` on a new thread that doesn't keep the process alive.

    on_rejected: called on the calling thread if the system has no more threads. By default,
    Overloaded is raised. Pass ``on_rejected`` if the calling thread works for another request.
    """
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        overloaded = Overloaded("the server can't start another thread; try again later")
        if on_rejected is None:
            raise overloaded from error
        on_rejected(overloaded)


def log_exception(what: str, error: BaseException) -> None:
    """Write a traceback to the server's log. Never raises."""
    text = f"tandem: {what}\n{''.join(traceback.format_exception(error))}"
    _log(pb_utils.Logger.log_error, text)


def log_warning(text: str) -> None:
    """Write a warning to the server's log. Never raises."""
    _log(pb_utils.Logger.log_warn, f"tandem: {text}")


def log_info(text: str) -> None:
    """Write a line to the server's log. Never raises."""
    _log(pb_utils.Logger.log_info, f"tandem: {text}")


def _log(write: Callable[[str], None], text: str) -> None:
    try:
        write(text)
    except Exception:  # noqa: BLE001  the log uses shared memory, which may be full
        sys.stderr.write(f"{text}\n")


INTERVAL = 0.02  # minimum seconds between two checks of all requests
INTERVAL_EACH = 0.002  # seconds per request, if there are many
IDLE_INTERVAL = 0.5  # seconds between two checks without requests
LOG_INTERVAL = 10.0  # minimum seconds between two tracebacks of a repeated error


class Watched(Protocol):
    """A request that must be checked until it is closed."""

    @property
    def closed(self) -> bool:
        """Whether the request needs no further checks."""

    def check(self, now: float) -> None:
        """Check the request. now: monotonic clock in seconds."""


class Watcher:
    """Checks the added requests until they are closed.

    periodic_tasks: called after each check of all requests.
    """

    def __init__(self, *periodic_tasks: Callable[[], None]) -> None:
        self._watched: set[Watched] = set()
        self._periodic_tasks = periodic_tasks
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._next_log_time: dict[str, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def add(self, watched: Watched) -> None:
        with self._lock:
            self._watched.add(watched)
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped:
            watched = self._check_all()
            if watched:
                time.sleep(max(INTERVAL, watched * INTERVAL_EACH))
            else:
                self._wake.wait(IDLE_INTERVAL)
                self._wake.clear()

    def _check_all(self) -> int:
        """Check all requests once. Return the number of requests."""
        with self._lock:
            requests = list(self._watched)
        now = time.monotonic()
        for watched in requests:
            self._try("failed to check a request", partial(self._check, watched, now))
        for task in self._periodic_tasks:
            self._try("a periodic task failed", task)
        return len(requests)

    def _check(self, watched: Watched, now: float) -> None:
        if watched.closed:
            with self._lock:
                self._watched.discard(watched)
        else:
            watched.check(now)

    def _try(self, what: str, work: Callable[[], None]) -> None:
        """Run ``work`` and log errors, so that they end neither this thread nor other checks."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  the others must still be checked
            now = time.monotonic()
            if now >= self._next_log_time.get(what, 0.0):
                self._next_log_time[what] = now + LOG_INTERVAL
                log_exception(what, error)
