"""A step serves the call that waited longest, then calls that are almost done, then prompts."""

from types import SimpleNamespace

import numpy as np
import pytest

from tandem.engines.stepping.engine import Scheduler
from tandem.engines.stepping.kv_cache import Owner


class Cache:
    """Counts free tokens. lent: tokens that branches hold. kept: entries that may be reused."""

    def __init__(self, free=1000):
        self.free, self.lent, self.kept, self.owners = free, 0, [], []

    def acquire(self, tokens, reusable, max_length, owner):
        if max_length > self.free:
            return None
        self.free -= max_length
        self.owners.append(owner)
        return SimpleNamespace(size=max_length, lent_blocks=0)

    def release(self, entry):
        self.free += entry.size
        self.kept.append(entry)

    def drop(self, entry):
        self.free += entry.size

    def needs_lent_blocks(self, max_length):
        return max_length > self.free


def call(pending=1, tail=1, max_length=100):
    """A call that must still compute `pending` tokens, the last `tail` of them in one step."""
    request = SimpleNamespace(max_length=max_length, lora_task_id=2, cache_salt=3)
    return SimpleNamespace(
        pending=pending, tail=tail, request=request, entry=None, over=False, reusable=0,
        tokens=np.zeros(0, np.int64),
    )  # fmt: skip


def running(calls, budget=16):
    scheduler = Scheduler(Cache(), budget)
    scheduler.waiting.extend(calls)
    scheduler.admit()
    assert scheduler.running == list(calls)
    return scheduler


def test_calls_that_are_almost_done_go_before_prompts():
    first, prompt, decoding, verifying = call(), call(50), call(), call(5, 5)
    scheduler = running([first, prompt, decoding, verifying])
    assert scheduler.schedule() == [(first, 1), (decoding, 1), (verifying, 5), (prompt, 9)]
    assert scheduler.running == [first, prompt, decoding, verifying]


def test_a_call_that_got_nothing_is_first_in_the_next_step():
    prompt, decoding, other = call(100), call(), call(3)
    scheduler = running([prompt, decoding, other])
    assert scheduler.schedule() == [(prompt, 16)]
    prompt.pending -= 16
    assert scheduler.running == [decoding, other, prompt]
    assert scheduler.schedule() == [(decoding, 1), (other, 3), (prompt, 12)]


@pytest.mark.parametrize(("pending", "chunk"), [(20, 15), (17, 12), (16, 16), (21, 16)])
def test_the_tokens_to_verify_are_never_split(pending, chunk):
    assert [count for _, count in running([call(pending, 5)]).schedule()] == [chunk]


def test_a_verification_that_does_not_fit_waits_whole():
    first, verifying, decoding = call(14, 14), call(5, 5), call()
    scheduler = running([first, verifying, decoding])
    assert scheduler.schedule() == [(first, 14), (decoding, 1)]
    assert scheduler.running == [verifying, first, decoding]


def test_calls_are_admitted_in_order_and_wait_for_the_first():
    large, small = call(max_length=90), call(max_length=10)
    scheduler = Scheduler(Cache(50), 16)
    scheduler.waiting.extend([large, small])
    scheduler.admit()
    assert (list(scheduler.waiting), scheduler.running, len(scheduler)) == ([large, small], [], 2)
    scheduler._cache.free = 100
    scheduler.admit()
    assert (scheduler.running, len(scheduler.waiting)) == ([large, small], 0)
    assert scheduler._cache.owners == [Owner(2, 3)] * 2
    scheduler.waiting.append(late := call())
    assert scheduler.calls == [large, small, late]
    assert len(scheduler) == 3


@pytest.mark.parametrize("keep", [True, False])
def test_a_call_is_removed_once_and_its_entry_kept_on_request(keep):
    one, other = call(), call()
    scheduler = running([one, other])
    for _ in range(2):
        scheduler.remove(one, keep=keep)
    assert scheduler.running == [other]
    assert scheduler._cache.free == 900
    assert scheduler._cache.kept == [one.entry] * keep


def test_a_waiting_call_can_be_removed():
    scheduler = Scheduler(Cache(0), 16)
    scheduler.waiting.append(one := call())
    for _ in range(2):
        scheduler.remove(one, keep=True)
    assert len(scheduler) == 0
    assert one.over


def test_branches_end_latest_first_only_while_a_waiting_call_needs_their_blocks():
    calls = [call(), call(), call(), call()]
    scheduler = running(calls)
    scheduler._cache.free = 0
    for lender in calls[:3]:
        lender.entry.lent_blocks = 1
    assert list(scheduler.preempted()) == []  # no call waits
    scheduler.waiting.append(call(max_length=100))
    ended = []
    for lender in scheduler.preempted():
        ended.append(lender)
        scheduler._cache.free += 50
    assert ended == [calls[2], calls[1]]
