"""Work that leaves the processors to engines and streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tandem.guides.errors import GuideUndecided

Result = TypeVar("Result")

NICENESS: Final = 10  # a tenth of a busy core is left to it


def at_low_priority(work: Callable[[], Result]) -> Result:
    """Do the work on a thread of low priority, and return what it returns.

    Threads that it starts have a low priority as well. GuideUndecided where no thread is left.
    """
    with ThreadPoolExecutor(1, initializer=lower_priority) as thread:
        try:
            done = thread.submit(work)
        except RuntimeError as error:
            raise GuideUndecided("no thread was left to compile it") from error
        return done.result()


def lower_priority() -> None:
    """Give this thread a low priority, for good: only a privileged one may raise it again."""
    os.nice(NICENESS)  # on Linux, of one thread
