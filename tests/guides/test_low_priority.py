"""Work that leaves the processors to others."""

import os
import threading

import pytest

from tandem.guides.errors import GuideUndecided
from tandem.guides.low_priority import NICENESS, at_low_priority

LOWEST = 19  # that Linux has


def niceness():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_is_done_at_a_low_priority_and_nothing_else_is():
    before = niceness()
    assert at_low_priority(niceness) == min(before + NICENESS, LOWEST)
    assert niceness() == before


def test_where_no_thread_is_left_it_may_be_asked_for_again(monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(GuideUndecided, match="no thread was left"):
        at_low_priority(niceness)


def test_what_the_work_raises_is_raised():
    def fail():
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        at_low_priority(fail)
