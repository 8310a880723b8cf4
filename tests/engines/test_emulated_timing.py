"""The emulated engine responds on time, on a virtual clock and on the real clock."""

from __future__ import annotations

import published_rows
import pytest
from emulated import emulated
from engine_harness import prompt
from published_rows import SequentialLoop
from scale import first_of
from virtual_timer import VirtualTimer

from tandem.engines.emulated.engine import MS


def finish(timer, *pending) -> list[float]:
    """Advance the clock until all calls have ended; return the end times in milliseconds."""
    ends: dict[int, float] = {}
    while len(ends) < len(pending):
        timer.advance()
        for number, call in enumerate(pending):
            while not call.empty:
                if call.next().final:
                    ends[number] = timer.now_ns() / MS
    return [ends[number] for number in range(len(pending))]


def test_each_token_and_each_verification_takes_one_step():
    timer = VirtualTimer()
    target = emulated(timer, step_ms=20.0, verify_slope=0.005)
    assert finish(timer, target.start(prompt(1, 9), 3)) == [60.0]
    assert finish(timer, target.start(prompt(1, 9), 11, drafts=prompt(2, 10))) == [60.0 + 21.0]


class BusyTimer(VirtualTimer):
    """A timer on a busy machine: each reading of the clock takes 0.3 ms."""

    def now_ns(self):
        self.pass_ns(3 * MS // 10)
        return super().now_ns()

    wall_ns = now_ns


class EarlyTimer(VirtualTimer):
    """A timer that fires 0.05 ms early, as the real timer may."""

    def at(self, due_ns, action):
        super().at(due_ns - MS // 20, action)


@pytest.mark.parametrize("new", [1, 5])
@pytest.mark.parametrize("timer", [BusyTimer, EarlyTimer])
def test_reported_times_include_every_step_on_a_busy_machine(timer, new):
    clock = timer()
    pending = emulated(clock, step_ms=0.2).start(prompt(1, 9), new)
    while pending.empty:
        clock.advance()
    usage = pending.next().usage
    assert usage.first_token_time_ns >= usage.first_scheduled_time_ns + MS // 5
    assert usage.last_token_time_ns >= usage.first_token_time_ns + (new - 1) * MS // 5


def test_a_cached_context_takes_no_prefill_time():
    timer = VirtualTimer()
    target = emulated(timer, step_ms=10.0, prefill_ms_per_token=0.5)
    ids = prompt(1, 41)
    assert finish(timer, target.start(ids, 1)) == [20.0 + 10.0]
    assert finish(timer, target.start(ids, 1)) == [30.0 + 10.0]


def test_concurrent_calls_share_steps_and_each_lengthens_them_by_the_batch_slope():
    timer = VirtualTimer()
    target = emulated(timer, step_ms=10.0, batch_slope=0.1)
    first = target.start(prompt(0, 9), 3)
    timer.pass_ns(4 * MS)
    others = [target.start(prompt(n, 9), new) for n, new in ((1, 1), (2, 3))]
    # Steps of 1, 3, 2 and 1 calls: the others wait until the first step ends.
    assert finish(timer, first, *others) == [10.0 + 12.0 + 11.0, 10.0 + 12.0, 33.0 + 10.0]


def test_drafts_and_prefill_lengthen_the_step_for_all_its_calls():
    timer = VirtualTimer()
    target = emulated(timer, step_ms=10.0, verify_slope=0.05, prefill_ms_per_token=0.5)
    first = target.start(prompt(1, 1), 3)
    verified = [target.start(prompt(n, 5), 3, drafts=prompt(2, 2)) for n in (2, 3)]
    second_step = 10.0 * (1 + 0.05 * 4) + 0.5 * 8  # two calls with 2 draft tokens, 4 of prefill
    assert finish(timer, first, *verified) == [20.0 + second_step, *[10.0 + second_step] * 2]


def test_a_call_that_arrived_during_a_step_does_not_join_an_earlier_one():
    """Even if the machine is so busy that the step's end is noticed after the arrival."""
    timer = VirtualTimer()
    target = emulated(timer, step_ms=10.0)
    first = target.start(prompt(0, 9), 2)
    timer.pass_ns(13 * MS)
    late = target.start(prompt(1, 9), 1)
    timer.advance()  # at 13 ms, the step that ended at 10 ms
    assert finish(timer, first, late) == [20.0, 30.0]


def test_an_idle_engine_begins_at_the_arrival_of_a_call():
    timer = VirtualTimer()
    target = emulated(timer, step_ms=10.0)
    assert finish(timer, target.start(prompt(0, 9), 1)) == [10.0]
    timer.pass_ns(5 * MS)
    outcome = target.start(prompt(1, 9), 1)
    assert finish(timer, outcome) == [25.0]


def test_the_first_scheduled_time_is_when_the_first_step_begins():
    timer = VirtualTimer()
    target = emulated(timer, step_ms=10.0)
    target.start(prompt(0, 9), 2)
    timer.pass_ns(4 * MS)
    pending = target.start(prompt(1, 9), 1)
    timer.run_ns(16 * MS)
    usage = pending.next().usage
    assert usage.first_scheduled_time_ns == 10 * MS
    assert usage.first_token_time_ns == usage.last_token_time_ns == 20 * MS


def test_a_stop_returns_the_tokens_finished_so_far():
    timer = VirtualTimer()
    target = emulated(timer, step_ms=10.0)
    whole = emulated().tokens(prompt(1, 9), 8)
    pending = target.start(prompt(1, 9), 8, request_id="x")
    timer.run_ns(35 * MS)
    target.engine.stop("x")
    outcome = pending.wait()
    assert outcome.tokens == whole[:3]
    assert outcome.last.final
    timer.advance()  # to the time at which the call would have ended
    assert pending.empty


@pytest.mark.parametrize("rows", first_of(published_rows.rows()[::10], published_rows.rows()[::2]))
def test_emulated_profiles_reproduce_the_published_throughput(rows):
    for row in rows:
        throughput = published_rows.run(row, answers=20)
        assert throughput == pytest.approx(row.published, rel=0.03), row.profile.stem


def test_a_stop_probability_speeds_up_mixed_easy_and_hard_text():
    rows = {row.profile.stem: row for row in published_rows.rows()}
    loop = SequentialLoop(rows["emulated-70b-1b-two-state"].profile, orchestration_ms=1.0)
    fixed = loop.run(8, draft_len=10)
    stopping = loop.run(8, draft_len=16, stop_probability=0.25)
    assert stopping > 1.08 * fixed
