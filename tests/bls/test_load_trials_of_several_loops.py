"""Where several loops serve an entry, one of them tries and all go its way."""

import pytest
from trials import try_both

from tandem.bls.load_trials import FIRST_TOKENS, PATIENCE, PIECE, TURN_TOKENS, LoadTrials
from tandem.bls.other_loops import OwnDecisions

EACH = FIRST_TOKENS // 2  # tokens of each sequence before a trial


def new_trials(decisions):
    return LoadTrials(decisions, first=True, first_of_each=EACH)


class Loops:
    """Trials of loops that decode side by side; the first one that decodes anything decides."""

    def __init__(self, running):
        self.running = running  # of each
        self.told = [{} for _ in running]
        self.trials = [new_trials(Told(self, own)) for own in range(len(running))]

    @property
    def all(self):
        """Sequences of all of them."""
        return sum(self.running)

    def rounds(self, count, *, with_it, without):
        """Rounds of every sequence; the rate falls with the share of all that go the way."""
        for _ in range(count):
            ways = [trials.allow(self.all) for trials in self.trials]
            share = sum(n for n, way in zip(self.running, ways, strict=True) if way) / self.all
            for n, way, trials in zip(self.running, ways, self.trials, strict=True):
                tokens = 2 if way else 1
                seconds = (1 - share) / without + share * 2 / with_it
                for _ in range(n):
                    trials.observe(self.all, tokens, seconds, allowed=way)


class Told(OwnDecisions):
    """What one of them sees of the others."""

    def __init__(self, loops, own):
        self._loops, self._own = loops, own

    def to_follow(self, load):
        decide = [n for n, running in enumerate(self._loops.running) if running]
        return None if decide[0] >= self._own else self._loops.told[decide[0]].get(load)

    def tell(self, load, decision):
        self._loops.told[self._own][load] = decision

    def num_elsewhere(self):
        return self._loops.all - self._loops.running[self._own]


def test_all_loops_go_the_way_of_one_also_in_its_trials():
    loops = Loops([2, 2, 2])
    seen = set()
    for _ in range(10 * EACH):
        loops.rounds(1, with_it=100, without=130)
        seen.add(tuple(trials.allow(6) for trials in loops.trials))
        pieces = {trials.longest_piece(6, 99) for trials in loops.trials}
        assert len(pieces) == 1
    assert seen == {(True,) * 3, (False,) * 3}
    assert not loops.trials[2].allow(6)  # each that drafts among others that do not would gain


def test_others_hear_that_a_load_was_left_in_a_trial():
    """They would meet its turn in the next burst."""
    loops = Loops([2, 2])
    while loops.trials[1].allow(4):
        loops.rounds(1, with_it=100, without=100)
    loops.trials[0].allow(64)
    assert loops.trials[1].allow(4)


def test_they_hear_it_also_where_they_asked_as_fewer_decoded():
    """The load lasted until half as many did; what was told then is of that number."""
    loops = Loops([20, 20])
    for trials in loops.trials:
        trials.allow(64)
    while loops.trials[1].allow(40):
        loops.rounds(1, with_it=100, without=100)
    loops.trials[0].allow(4)
    assert loops.trials[1].allow(40)


def test_they_hear_of_the_load_that_so_many_have_without_more_before():
    """Where it has a way of its own, that of the larger load is not told in its place."""
    loops = Loops([20, 20])
    loops.rounds(10 * EACH, with_it=100, without=130)
    assert not loops.trials[0].allow(40)
    try_both(loops.trials[0], 90, with_it=5, without=4)
    assert all(trials.allow(40) for trials in loops.trials)
    loops.trials[0].allow(4)
    assert not loops.trials[1].allow(40)


def test_a_loop_that_follows_another_one_in_its_own_turn_has_left_that():
    """Once it decides again, its next sequences would meet it."""
    loops = Loops([0, 4])
    while loops.trials[1].allow(4):
        loops.rounds(1, with_it=100, without=100)
    loops.running[0] = 4
    loops.trials[0].allow(8)
    loops.trials[1].allow(8)
    loops.running[0] = 0
    assert loops.trials[1].allow(4)


def test_a_loop_decides_itself_while_those_before_it_are_idle():
    loops = Loops([4, 4])
    loops.rounds(10 * EACH, with_it=100, without=130)
    loops.running[0] = 0
    assert loops.trials[1].allow(8)  # the first choice: it has tried nothing
    loops.rounds(10 * EACH, with_it=100, without=130)
    assert not loops.trials[1].allow(4)
    loops.running[0] = 4
    assert not loops.trials[1].allow(8)


class Counting(OwnDecisions):
    """Rounds that others would be told of."""

    number = 0

    def counted(self):
        self.number += 1


def test_others_are_told_of_rounds_that_went_the_way_which_was_decided():
    """A loop that has none would never decide anything else."""
    counting = Counting()
    trials = new_trials(counting)
    for allowed in (True, False, False, True):
        trials.observe(4, 5, 1.0, allowed=allowed)
    trials.observe(1, 5, 1.0, allowed=True)  # alone
    assert counting.number == 2


def test_rounds_of_which_nothing_else_is_told_are_rounds_too():
    """A leader of one long answer learns from one round in 32."""
    for first in (True, False):
        counting = Counting()
        trials = LoadTrials(counting, first=first, first_of_each=EACH)
        trials.count(4, 5)
        trials.count(1, 5)  # alone
        assert counting.number == first  # else it began before the way changed


def test_rounds_that_follow_a_turn_have_to_be_observed_as_those_of_its_own_loop():
    loops = Loops([2, 2])
    assert [trials.count(4, 1) for trials in loops.trials] == [True, True]
    while not loops.trials[0].on_trial(4):
        loops.rounds(1, with_it=100, without=100)
    assert [trials.count(4, 1) for trials in loops.trials] == [False, False]


def test_tokens_that_are_only_counted_are_those_of_its_own_sequences():
    trials = Loops([2, 30]).trials[0]
    trials.observe(32, 1, 1.0, allowed=True)
    assert trials.count(32, 2 * EACH)
    trials.observe(32, 1, 1.0, allowed=True)
    assert trials.on_trial(32)


@pytest.mark.parametrize(
    ("running", "most"), [([8, 24], PATIENCE + TURN_TOKENS), ([1, 31], TURN_TOKENS + 1)]
)
def test_a_turn_is_no_longer_where_the_share_of_its_loop_becomes_smaller(running, most):
    """Its own sequences end, and those that come meanwhile are other loops'."""
    loops = Loops([16, 16])
    while loops.trials[1].allow(32):
        loops.rounds(1, with_it=100, without=100)
    loops.running, rounds = running, 0
    while not loops.trials[1].allow(32):
        loops.rounds(1, with_it=100, without=100)
        rounds += 1
    assert rounds <= most


def test_a_turn_is_as_long_as_its_own_sequences_need():
    for running in ([4], [4, 12]):
        loops = Loops(running)
        loops.rounds(EACH, with_it=100, without=100)
        assert loops.trials[0].longest_piece(loops.all, 99) == PIECE
