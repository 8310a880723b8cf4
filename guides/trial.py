"""Tries in a copy of this process what may never end, or end the process that does it.

llguidance recurses for each reference of a schema and each rule of a grammar: a chain of 3,000
overflows the stack and takes the process with it. An intersection of 300 expressions, 5 kB, keeps
it busy for minutes, and nothing can stop it but the end of the process. What is written in Python
shares a lock with all streams of the process: 256 kB of a schema are looked at for seconds.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, TextIO, cast

from tandem.guides.errors import GuideError, GuideTakesLong, GuideUndecided
from tandem.guides.low_priority import lower_priority
from tandem.guides.turns import Turns

# Of a processor, that the attempts at a guide may take, one after the other. Nearly all guides take
# less than the first; none may take more than the last.
ATTEMPT_SECONDS: Final = (0.05, 0.25, 4.0)
LAST_ATTEMPT: Final = len(ATTEMPT_SECONDS) - 1
# For a trial that hangs without computing: a lock may have been held when the process was copied.
SECONDS: Final = 30.0
MORE_BYTES: Final = 2**30
# Smaller than the stacks of the threads that do the work afterwards: these have 2 MiB and more.
STACK_BYTES: Final = 512 * 2**10
POLL_SECONDS: Final = (0.0005, 0.01)  # at first, at last
FORKING: Final = threading.Lock()
TURNS: Final = Turns()  # of all trials of this process
TOO_LARGE: Final = "it is too deep or too large to compile; send a simpler one"
PRCTL: Final = ctypes.CDLL(None).prctl  # looked up here: a copy may find the loader's lock taken
PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>


def try_out(work: Callable[[], str], cpu_seconds: float) -> str | None:
    """Return what the work returns, done in a copy of this process; raise the GuideError it raises.

    cpu_seconds: of a processor, that it may take; GuideTakesLong where it takes more.
    GuideUndecided where that may be the machine's fault: it had no time, thread or memory to spare.

    None after another exception: the caller meets it too, when it does the work itself.
    """
    with os.fdopen(os.memfd_create("trial"), "w+") as outcome:
        child = _fork()
        if not child:
            _work(work, cpu_seconds, outcome)
        TURNS.begin(child, cpu_seconds)
        _check_end(_status_of(child), cpu_seconds)
        outcome.seek(0)
        returned, refused = json.load(outcome)
    if refused is not None:
        raise GuideError(refused)
    return cast("str | None", returned)


def _fork() -> int:
    """Copy this process, without its garbage collector.

    What lies in cycles may be requests in memory that is shared with Triton. A copy that collected
    them would free what is not its own, and Triton would crash, or wait for the memory's lock for
    ever where the copy is killed meanwhile.
    """
    with FORKING:
        collects = gc.isenabled()
        gc.disable()
        child = None
        try:
            child = os.fork()
        finally:
            if collects and child != 0:
                gc.enable()
    return child


def _check_end(status: int | None, cpu_seconds: float) -> None:
    """Raise GuideError where a copy did not come to the end of its work."""
    if status is None:
        raise GuideUndecided(f"it is not compiled after {SECONDS:.0f} s")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        raise GuideTakesLong(f"it takes more than {cpu_seconds:g} s to compile; send a simpler one")
    if status:
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            raise GuideError(TOO_LARGE)
        raise GuideUndecided("no memory or thread was left to compile it")


def _status_of(child: int) -> int | None:
    """Wait for its end and return how it ended; None where it had to be killed.

    The time in which it is another one's turn does not count.
    """
    pause, most = POLL_SECONDS
    left = SECONDS
    while (status := TURNS.end_of(child)) is None:
        if left <= 0:
            os.kill(child, signal.SIGKILL)
        began, goes = time.monotonic(), TURNS.goes(child)
        time.sleep(pause)
        left -= (time.monotonic() - began) * goes
        pause = min(1.5 * pause, most)
    return status if left > 0 else None


def _work(work: Callable[[], str], cpu_seconds: float, outcome: TextIO) -> NoReturn:
    """Do it within bounds, and write what comes of it; whatever happens, this process ends here."""
    ended = False

    def do() -> None:
        nonlocal ended
        json.dump(_outcome_of(work), outcome)
        outcome.flush()
        ended = True

    try:
        _bound(cpu_seconds)
        thread = threading.Thread(target=do)
        thread.start()
        thread.join()
    finally:
        os._exit(0 if ended else 1)


def _outcome_of(work: Callable[[], str]) -> tuple[str | None, str | None]:
    """Return what the work returns, and why it refuses to."""
    try:
        return work(), None
    except GuideError as error:
        return None, str(error)
    except MemoryError:
        return None, TOO_LARGE
    except Exception:  # noqa: BLE001  whoever does the work again meets it again
        return None, None


def _bound(cpu_seconds: float) -> None:
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)  # if it is stopped, nobody else lets it go on
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # what a dying process says is no matter of the log
    faulthandler.disable()
    lower_priority()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # whose signal ends the process
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bytes_now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (bytes_now + MORE_BYTES,) * 2)
    threading.stack_size(STACK_BYTES)
