"""Whether drafting ahead pays under load is found out by trying, which costs next to nothing."""

from __future__ import annotations

import pytest

from tandem.bls.ahead_trials import (
    KEPT_ROUNDS,
    TRIAL_ROUNDS,
    TRIAL_TURNS,
    AheadTrials,
)


class Rounds:
    """Sequences that decode at a rate for each way; each round brings one to seven tokens."""

    def __init__(self, running, *, ahead, in_turns):
        self.trials, self.running = AheadTrials(), running
        self.seconds = {True: 1 / ahead, False: 1 / in_turns}
        self.played = 0

    def play(self, rounds):
        """Return how many rounds were ahead."""
        num_ahead = 0
        for _ in range(rounds):
            ahead, tokens = self.trials.allow(self.running), 1 + self.played % 7
            self.played += 1
            self.trials.observe(self.running, tokens, 4 * self.seconds[ahead], ahead=ahead)
            num_ahead += ahead
        return num_ahead


def test_a_sequence_alone_drafts_ahead_whatever_was_measured():
    rounds = Rounds(1, ahead=1, in_turns=100)
    assert rounds.play(1000) == 1000


@pytest.mark.parametrize("running", [2, 4, 16])
def test_both_ways_are_tried_and_the_better_one_is_kept(running):
    half, kept = TRIAL_TURNS * TRIAL_ROUNDS * running, KEPT_ROUNDS * running
    losing, winning = (Rounds(running, ahead=ahead, in_turns=100) for ahead in (90, 110))
    assert losing.play(2 * half) == winning.play(2 * half) == half
    assert losing.play(kept) == 0
    assert winning.play(kept) == kept


def test_ways_take_turns_in_a_trial():
    rounds, turn = Rounds(4, ahead=99, in_turns=100), 4 * TRIAL_ROUNDS
    played = [rounds.play(turn) for _ in range(2 * TRIAL_TURNS)]
    assert played == [0, turn] * TRIAL_TURNS


@pytest.mark.parametrize("running", [2, 4, 16])
def test_a_way_that_is_far_behind_has_one_turn(running):
    rounds, turn = Rounds(running, ahead=50, in_turns=100), TRIAL_ROUNDS * running
    assert [rounds.play(turn), rounds.play(turn)] == [0, turn]
    assert rounds.play(KEPT_ROUNDS * running) == 0
    assert [rounds.play(turn), rounds.play(turn)] == [0, turn]  # the next trial


def test_a_way_that_has_become_better_is_found_by_one_of_the_next_trials():
    rounds, half, kept = Rounds(4, ahead=90, in_turns=100), TRIAL_TURNS * TRIAL_ROUNDS * 4, 4096
    assert kept == 4 * KEPT_ROUNDS
    rounds.play(2 * half + kept)
    rounds.seconds[True] = 1 / 103
    assert rounds.play(2 * half + kept) == half  # not certain yet
    rounds.play(2 * half + kept)
    assert rounds.play(2 * half) == half
    assert rounds.play(kept) == kept


def test_a_machine_that_becomes_slower_or_faster_makes_no_way_better():
    """What the ways earned in other times is not held against each other."""
    rounds, half, kept = Rounds(4, ahead=90, in_turns=100), TRIAL_TURNS * TRIAL_ROUNDS * 4, 4096
    for factor in (0.5, 3.0, 0.2):
        rounds.seconds = {way: factor * seconds for way, seconds in rounds.seconds.items()}
        assert rounds.play(2 * half) == half
        assert rounds.play(kept) == 0


def test_trying_costs_less_than_one_hundredth():
    rounds = Rounds(8, ahead=50, in_turns=100)
    rounds.play(8 * TRIAL_ROUNDS * 2 * TRIAL_TURNS)
    period = 8 * (KEPT_ROUNDS + 2 * TRIAL_ROUNDS * TRIAL_TURNS)
    lost = rounds.play(10 * period) * (1 / 50 - 1 / 100)
    assert 0 < lost < 0.01 * 10 * period / 100


def try_both(trials, running, *, ahead, in_turns):
    """Rounds of either way under a load, until one is kept."""
    for _ in range(2 * TRIAL_TURNS * TRIAL_ROUNDS * running):
        way = trials.allow(running)
        trials.observe(running, ahead if way else in_turns, 1.0, ahead=way)


def test_loads_are_told_apart():
    trials = AheadTrials()
    try_both(trials, 2, ahead=5, in_turns=4)
    try_both(trials, 4, ahead=4, in_turns=5)
    assert trials.allow(3)
    assert not trials.allow(7)


def test_under_a_new_load_that_way_comes_first_which_is_better_under_the_nearest():
    trials = AheadTrials()
    assert not trials.allow(16)  # nothing is known
    try_both(trials, 2, ahead=5, in_turns=4)
    assert trials.allow(8)
    try_both(trials, 32, ahead=4, in_turns=5)
    assert not trials.allow(64)
    assert trials.allow(4)


def test_rounds_that_began_before_the_way_changed_are_not_counted():
    trials, turn = AheadTrials(), 2 * TRIAL_ROUNDS
    for _ in range(TRIAL_TURNS):
        for _ in range(turn):
            trials.observe(2, 4, 1.0, ahead=False)
        for _ in range(100):
            trials.observe(2, 1000, 1.0, ahead=False)  # late ones
        for _ in range(turn):
            trials.observe(2, 5, 1.0, ahead=True)
        for _ in range(100):
            trials.observe(2, 1, 1.0, ahead=True)
    assert trials.allow(2)


def test_the_first_rounds_of_a_turn_are_not_counted():
    """They are verified from branches of the turn before, or had none."""
    trials = AheadTrials()
    for _ in range(TRIAL_TURNS):
        for ahead, first, tokens in ((False, 9, 4), (True, 1, 5)):
            for number in range(4 * TRIAL_ROUNDS):
                trials.observe(4, first if number < 4 else tokens, 1.0, ahead=ahead)
    assert trials.allow(4)
