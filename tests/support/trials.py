"""Sequences that decode under a load, in trials of a way that pays or does not."""

from __future__ import annotations

from collections import Counter

from tandem.bls.load_trials import (
    FIRST_TOKENS,
    KEPT_TOKENS,
    PIECE,
    TRIAL_TURNS,
    TURN_TOKENS,
    LoadTrials,
)

TOKENS = 5  # of a round
EACH = FIRST_TOKENS // 2  # of each sequence before a trial: of two and more that is enough


def new_trials(*, first):
    return LoadTrials(first=first, first_of_each=EACH)


class Sequences:
    """Sequences that decode in turn, at a rate for each way: with it (True) and without.

    Their first trial begins.
    """

    def __init__(self, running, *, with_it, without, first=False):
        self.trials, self.running = new_trials(first=first), running
        self.rates = {True: with_it, False: without}
        self.ways = [self.trials.allow(running)] * running  # of the rounds under way
        self.tokens, self.seconds = Counter(), Counter()
        self.now = 0
        while not self.on_trial:
            self.round()

    @property
    def on_trial(self):
        """Whether a trial is under way."""
        return self.trials.longest_piece(self.running, PIECE + 1) == PIECE

    def round(self):
        """End a sequence's round and begin its next one; return its way."""
        number = self.now % self.running
        way, seconds = self.ways[number], TOKENS / self.rates[self.ways[number]]
        self.now += 1
        self.trials.observe(self.running, TOKENS, seconds, allowed=way)
        self.tokens[way] += TOKENS
        self.seconds[way] += seconds
        self.ways[number] = self.trials.allow(self.running)
        return way

    def stay(self):
        """Let rounds pass until the way changes; return the tokens of each, on average."""
        began, way = self.now, self.trials.allow(self.running)
        while self.trials.allow(self.running) is way:
            self.round()
        return (self.now - began) * TOKENS / self.running

    def try_both(self):
        """Let a trial pass, and the time that the better way is kept, and a turn of it again.

        Returns how many turns had gone before, the better way, and tokens of each in it.
        """
        turns = 0
        while (stayed := self.stay()) < KEPT_TOKENS:
            turns += 1
            assert stayed <= TURN_TOKENS + 3 * TOKENS
        return turns, not self.trials.allow(self.running), stayed

    def end_trial(self):
        """Let the rest of a trial pass."""
        while self.on_trial:
            self.round()


def try_both(trials, running, *, with_it, without):
    """Rounds of either way under a load, until one is kept."""
    for _ in range(running * (EACH + 2 * TRIAL_TURNS * 2 * TURN_TOKENS)):
        allowed = trials.allow(running)
        trials.observe(running, with_it if allowed else without, 1.0, allowed=allowed)
