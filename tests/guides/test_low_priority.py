"""Work that leaves the processors to others."""

import os
import threading

from tandem.guides.low_priority import NICENESS, at_low_priority

LOWEST = 19  # that Linux has


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_is_done_at_a_low_priority_and_nothing_else_is():
    before = niceness()
    assert at_low_priority(niceness) == min(before + NICENESS, LOWEST)
    assert niceness() == before
