"""Loops that share capacity admit requests like a single loop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bls.admission import Admission, LoopUsage, OtherLoops, Reservation
from tandem.bls.errors import Overloaded, ServingError

CAPACITY = {"max_running": 3, "max_waiting": 2, "kv_blocks": 8, "draft_kv_blocks": 4}


class Loops:
    """Record the sequences of several loops in the order in which they start."""

    def __init__(self, count, **capacity):
        self.started = []
        self._usages = [LoopUsage()] * count
        self.admissions = [
            Admission(**CAPACITY | capacity, other_loops=Others(self, own)) for own in range(count)
        ]

    def enter(self, loop, *reservations):
        self.admissions[loop].arrive(len(reservations)).enter(reservations)

    def add(self, loop, name, blocks=1, draft_blocks=0, priority=0):
        added = Reservation(blocks, draft_blocks, lambda: self.started.append(name), priority)
        self.enter(loop, added)
        return added

    def running(self):
        return [admission.running for admission in self.admissions]


class Others(OtherLoops):
    """One loop's view of the capacity that the other loops use."""

    def __init__(self, loops, own):
        self._loops, self._own = loops, own

    def usage(self):
        usages = self._loops._usages
        return LoopUsage.total(usage for n, usage in enumerate(usages) if n != self._own)

    def publish(self, usage):
        self._loops._usages[self._own] = usage

    def notify(self):
        for number, admission in enumerate(self._loops.admissions):
            if number != self._own:
                admission.start_waiting()


def test_an_urgent_sequence_starts_before_sequences_of_other_loops():
    loops = Loops(2)
    five = loops.add(0, "five", 5)
    loops.add(0, "four", 4)
    loops.add(1, "urgent", 4, priority=-1)
    loops.admissions[0].release(five)
    assert loops.started == ["five", "urgent", "four"]


def test_sequences_start_in_order_across_loops():
    loops = Loops(3)
    five = loops.add(0, "five", 5)
    loops.add(2, "four", 4)
    loops.add(1, "one", 1)
    assert loops.started == ["five"]
    loops.admissions[0].release(five)
    assert loops.started == ["five", "four", "one"]


def test_withdrawing_the_first_waiting_request_does_not_block_other_loops():
    loops = Loops(2)
    loops.add(0, "five", 5)
    four = loops.add(0, "four", 4)
    loops.add(1, "one", 1)
    assert loops.admissions[0].remove_waiting(four)
    assert loops.started == ["five", "one"]


def test_draft_blocks_freed_in_one_loop_are_used_in_another():
    loops = Loops(2)
    first, second = loops.add(0, "a", 1, 3), loops.add(1, "b", 1, 3)
    assert (first.has_draft_blocks, second.has_draft_blocks) == (True, False)
    loops.admissions[0].release(first)
    assert second.has_draft_blocks


def test_arrivals_in_other_loops_count_toward_the_queue_limit():
    loops = Loops(2)
    arrivals = loops.admissions[0].arrive(5)
    with pytest.raises(Overloaded, match="0 sequences are running and 5 are waiting"):
        loops.add(1, "a")
    arrivals.leave()
    loops.add(1, "a")
    assert loops.started == ["a"]


def test_the_queue_limit_counts_sequences_that_wait_for_blocks_in_other_loops():
    loops = Loops(2, max_waiting=1)
    loops.add(0, "whole", 8)
    arrivals = [admission.arrive(1) for admission in loops.admissions]
    arrivals[0].enter([Reservation(1)])
    with pytest.raises(Overloaded, match="1 sequences are running and 1 are waiting"):
        arrivals[1].enter([Reservation(1)])


def test_running_sequences_of_other_loops_are_counted():
    loops = Loops(2)
    loops.add(0, "a")
    loops.add(1, "b")
    assert [admission.running for admission in loops.admissions] == [1, 1]
    loops.admissions[0].start_waiting()
    assert [admission.load for admission in loops.admissions] == [2, 2]


def test_the_load_counts_sequences_that_are_about_to_start_in_any_loop():
    loops = Loops(2)
    loops.add(0, "a")
    arrivals = loops.admissions[1].arrive(1)
    loops.admissions[0].start_waiting()
    assert [admission.load for admission in loops.admissions] == [2, 2]
    arrivals.leave()
    loops.admissions[0].start_waiting()
    assert [admission.load for admission in loops.admissions] == [1, 1]


def test_the_load_is_at_most_the_number_of_sequences_that_may_run():
    (admission,) = Loops(1, max_running=3, max_waiting=2).admissions
    admission.arrive(5)
    assert admission.load == 3


steps = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 2), st.lists(st.integers(0, 9), min_size=1)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("withdraw"), st.integers(0, 9)),
    ),
    max_size=30,
)


@given(steps)
def test_several_loops_admit_requests_exactly_like_a_single_loop(steps):
    assert played(Loops(3), steps) == played(Loops(1), steps)


def played(loops, steps):
    """Run the steps; return rejections and, after each step, the sequences started so far."""
    outcomes, sequences = [], []
    for number, (what, *how) in enumerate(steps):
        if what == "enter":
            loop, sizes = how
            mine = [
                (loop % len(loops.admissions), reservation(loops, (number, n), blocks))
                for n, blocks in enumerate(sizes)
            ]
            outcomes.append(rejected(loops, mine))
            sequences += [] if outcomes[-1] else mine
        elif sequences:
            loop, chosen = sequences[how[0] % len(sequences)]
            if what == "leave" and chosen.name in loops.started:
                loops.admissions[loop].release(chosen)
                sequences.remove((loop, chosen))
            if what == "withdraw" and loops.admissions[loop].remove_waiting(chosen):
                sequences.remove((loop, chosen))
        outcomes.append([*loops.started])
    return outcomes


def reservation(loops, name, blocks):
    made = Reservation(blocks, start=lambda: loops.started.append(name))
    made.name = name
    return made


def rejected(loops, mine):
    try:
        loops.enter(mine[0][0], *(reservation for _, reservation in mine))
    except ServingError as error:  # compare error messages too
        return str(error)
    return ""
