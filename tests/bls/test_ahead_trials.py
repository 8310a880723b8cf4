"""Whether drafting ahead pays under load is found out by trying, which costs next to nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.bls.ahead_trials import TRIAL_EVERY, TRIAL_ROUNDS, AheadTrials


class Rounds:
    """Sequences that decode at a rate for each way; each round brings one to seven tokens."""

    def __init__(self, running, *, ahead, in_turns):
        self.trials, self.running = AheadTrials(), running
        self.seconds = {True: 1 / ahead, False: 1 / in_turns}
        self.random = np.random.default_rng(0)

    def play(self, rounds):
        """Return how many rounds were ahead."""
        num_ahead = 0
        for _ in range(rounds):
            ahead, tokens = self.trials.allow(self.running), int(self.random.integers(1, 8))
            self.trials.observe(self.running, tokens, 4 * self.seconds[ahead], ahead=ahead)
            num_ahead += ahead
        return num_ahead


def test_a_sequence_alone_drafts_ahead_whatever_was_measured():
    rounds = Rounds(1, ahead=1, in_turns=100)
    assert rounds.play(1000) == 1000


@pytest.mark.parametrize("running", [2, 4, 16])
def test_both_ways_are_tried_and_the_better_one_is_kept(running):
    trial = TRIAL_ROUNDS * running
    losing, winning = (Rounds(running, ahead=ahead, in_turns=100) for ahead in (65, 135))
    assert losing.play(trial) == winning.play(trial) == trial
    assert losing.play(trial) == winning.play(trial) == 0
    assert losing.play(TRIAL_EVERY * trial) == 0
    assert winning.play(TRIAL_EVERY * trial) == TRIAL_EVERY * trial


def test_the_worse_way_is_tried_again_and_kept_once_it_is_better():
    rounds = Rounds(4, ahead=65, in_turns=100)
    trial = TRIAL_ROUNDS * 4
    rounds.play((2 + TRIAL_EVERY) * trial)
    rounds.seconds[True] = 1 / 300
    assert rounds.play(trial) == trial  # a trial
    assert rounds.play(TRIAL_EVERY * trial) == TRIAL_EVERY * trial


def test_what_a_way_earned_before_counts_for_less_and_less():
    rounds = Rounds(4, ahead=60, in_turns=100)
    trial = TRIAL_ROUNDS * 4
    rounds.play((2 + TRIAL_EVERY) * trial)
    rounds.seconds[True] = 1 / 130
    assert rounds.play((1 + TRIAL_EVERY) * trial) == trial  # not certain yet
    assert rounds.play((1 + TRIAL_EVERY) * trial) == (1 + TRIAL_EVERY) * trial


def test_trying_costs_less_than_one_hundredth():
    rounds = Rounds(8, ahead=50, in_turns=100)
    period = (1 + TRIAL_EVERY) * TRIAL_ROUNDS * 8
    rounds.play(2 * TRIAL_ROUNDS * 8 + period)
    lost = rounds.play(10 * period) * (1 / 50 - 1 / 100)
    assert lost < 0.01 * 10 * period * TRIAL_EVERY / (1 + TRIAL_EVERY) / 50


def test_loads_are_told_apart():
    trials = AheadTrials()
    for _ in range(TRIAL_ROUNDS * 2):
        trials.observe(2, 4, 1.0, ahead=True)
    assert not trials.allow(2)
    assert not trials.allow(3)
    assert trials.allow(4)


def test_rounds_that_began_before_the_way_changed_are_not_counted():
    trials = AheadTrials()
    for _ in range(TRIAL_ROUNDS * 2):
        trials.observe(2, 4, 1.0, ahead=True)
    for _ in range(100):
        trials.observe(2, 1000, 1.0, ahead=True)  # late ones
    for _ in range(TRIAL_ROUNDS * 2):
        trials.observe(2, 5, 1.0, ahead=False)
    assert not trials.allow(2)
