"""The limiter caps the number of concurrent tasks and starts waiting tasks in order."""

import pytest

from tandem.bls.admission import ConcurrencyLimiter
from tandem.bls.errors import Overloaded


class Kitchen:
    """Record the names of tasks in the order in which they start."""

    def __init__(self, max_permits=1, max_waiting_bytes=100):
        self.at_work = []
        self.limiter = ConcurrencyLimiter(max_permits, max_waiting_bytes)

    def come(self, name, size=10):
        return self.limiter.acquire(lambda permit: self.at_work.append(name), size)


def test_concurrent_tasks_are_limited_and_start_in_order():
    kitchen = Kitchen(max_permits=2)
    first, second, *_ = [kitchen.come(name) for name in "abcd"]
    assert kitchen.at_work == ["a", "b"]
    second.release()
    assert kitchen.at_work == ["a", "b", "c"]
    first.release()
    assert kitchen.at_work == ["a", "b", "c", "d"]


def test_ending_a_permit_twice_starts_only_one_more_task():
    kitchen = Kitchen()
    first = kitchen.come("a")
    for name in "bcd":
        kitchen.come(name)
    first.release()
    first.release()
    assert kitchen.at_work == ["a", "b"]


def test_a_withdrawn_permit_is_skipped():
    kitchen = Kitchen()
    first, second, _ = [kitchen.come(name) for name in "abc"]
    second.leave_queue()
    second.leave_queue()
    first.release()
    assert kitchen.at_work == ["a", "c"]


def test_a_permit_in_use_cannot_be_withdrawn():
    kitchen = Kitchen()
    first = kitchen.come("a")
    kitchen.come("b")
    first.leave_queue()
    assert kitchen.at_work == ["a"]


def test_the_total_size_of_waiting_texts_is_limited():
    kitchen = Kitchen(max_waiting_bytes=100)
    kitchen.come("at work", 1000)
    kitchen.come("b", 60)
    last = kitchen.come("c", 40)
    with pytest.raises(
        Overloaded,
        match=r"^100 bytes of requests are waiting; the limit is 100; try again later$",
    ):
        kitchen.come("d", 1)
    last.leave_queue()
    kitchen.come("e", 40)


def test_the_text_of_a_started_task_does_not_count_as_waiting():
    kitchen = Kitchen(max_waiting_bytes=100)
    first = kitchen.come("a")
    kitchen.come("b", 100)
    first.release()
    kitchen.come("c", 100)


def test_a_single_text_can_wait_regardless_of_its_size():
    kitchen = Kitchen(max_waiting_bytes=100)
    kitchen.come("a")
    kitchen.come("b", 1000)
    with pytest.raises(Overloaded):
        kitchen.come("c", 1)
