"""Few at work at once, the others in order, nobody twice."""

import pytest

from tandem.bls.admission.concurrency_limiter import ConcurrencyLimiter
from tandem.bls.errors import Overloaded


class Kitchen:
    """A limiter, and who went to work."""

    def __init__(self, most=1, max_waiting_bytes=100):
        self.at_work = []
        self.limiter = ConcurrencyLimiter(
            most, max_waiting_bytes, "texts that wait to be tokenized"
        )

    def come(self, name, size=10):
        return self.limiter.acquire(lambda permit: self.at_work.append(name), size)


def test_as_many_go_to_work_as_may_and_the_rest_in_order():
    kitchen = Kitchen(most=2)
    first, second, *_ = [kitchen.come(name) for name in "abcd"]
    assert kitchen.at_work == ["a", "b"]
    second.end()
    assert kitchen.at_work == ["a", "b", "c"]
    first.end()
    assert kitchen.at_work == ["a", "b", "c", "d"]


def test_work_gets_its_own_turn():
    begun = []
    limiter = ConcurrencyLimiter(1, 0, "texts")
    permit = limiter.acquire(begun.append, 1)
    assert begun == [permit]


def test_a_turn_ends_once():
    kitchen = Kitchen()
    first = kitchen.come("a")
    for name in "bcd":
        kitchen.come(name)
    first.end()
    first.end()
    assert kitchen.at_work == ["a", "b"]


def test_one_that_left_the_queue_is_passed_over():
    kitchen = Kitchen()
    first, second, _ = [kitchen.come(name) for name in "abc"]
    second.withdraw()
    second.withdraw()
    first.end()
    assert kitchen.at_work == ["a", "c"]


def test_one_at_work_cannot_leave_the_queue():
    kitchen = Kitchen()
    first = kitchen.come("a")
    kitchen.come("b")
    first.withdraw()
    assert kitchen.at_work == ["a"]


def test_what_waits_holds_so_many_bytes_and_no_more():
    kitchen = Kitchen(max_waiting_bytes=100)
    kitchen.come("at work", 1000)
    kitchen.come("b", 60)
    last = kitchen.come("c", 40)
    with pytest.raises(
        Overloaded,
        match=r"^the texts that wait to be tokenized hold 100 bytes, of 100 that the "
        r"server keeps for them; try again later$",
    ):
        kitchen.come("d", 1)
    last.withdraw()
    kitchen.come("e", 40)


def test_what_went_to_work_waits_no_more():
    kitchen = Kitchen(max_waiting_bytes=100)
    first = kitchen.come("a")
    kitchen.come("b", 100)
    first.end()
    kitchen.come("c", 100)


def test_one_may_always_wait():
    kitchen = Kitchen(max_waiting_bytes=100)
    kitchen.come("a")
    kitchen.come("b", 1000)
    with pytest.raises(Overloaded):
        kitchen.come("c", 1)
