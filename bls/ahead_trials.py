"""Whether drafting ahead pays where several sequences decode, found out by trying.

What calls take tells what branches are worth to one sequence. It does not tell what they take from
the others: processor time of every process on the way, and of the draft engine. So all sequences
draft ahead for some rounds, then none does, and again: a trial. The way with more tokens a second
is kept until the next one. Only rates of one trial are compared, because the machine and the texts
change; how they compared in trials before counts for less and less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TRIAL_ROUNDS = 10  # of each sequence by one way, before the other way has its turn
TRIAL_TURNS = 3  # of each way, in a trial
MEMORY = 0.5  # how much of what a trial has found outlives the next one
FAR_BEHIND = 0.8  # of the other way's tokens a second: no other turn will change that
KEPT_ROUNDS = 1024  # of each sequence, by the better way


@dataclass
class Earned:
    """Tokens of rounds of one way, and the seconds that these took, of all sequences together."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second of one sequence."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count a round."""
        self.tokens += tokens
        self.seconds += seconds


@dataclass
class LoadTrials:
    """What is done now under one load, and what both ways have earned in the trial under way.

    ahead: whether all draft ahead. better: what trials have found. rounds_left: of all sequences
    together, until ``ahead`` changes; ``num_skipped`` of them are not counted, since the way before
    has a part in them. turns_left: in the trial under way; none: the better way is kept.
    """

    better: bool
    known: bool = False  # that it is
    ahead: bool = False
    rounds_left: int = 0
    num_skipped: int = 0
    turns_left: int = 0
    earned: dict[bool, Earned] = field(default_factory=dict)
    gain: float = 0.0  # logarithm of what drafting ahead earns, over what turns do

    def __post_init__(self) -> None:
        """Begin with what is taken for the better way."""
        self.ahead = self.better

    def observe(self, running: int, tokens: int, seconds: float, *, ahead: bool) -> None:
        """Count a round; one that began before the way changed belongs to no turn."""
        if ahead != self.ahead:
            return
        if not self.known and not self.turns_left:
            self._begin_trial(running)
        self.num_skipped -= 1
        if self.turns_left and self.num_skipped < 0:
            self.earned[ahead].add(tokens, seconds)
        self.rounds_left -= 1
        if self.rounds_left > 0:
            return
        if not self.turns_left:
            self._begin_trial(running)
            return
        self.turns_left -= 1
        if not self.turns_left or self._is_clear:
            self._end_trial(running)
        else:
            self._begin_turn(running, ahead=not self.ahead)

    def _begin_trial(self, running: int) -> None:
        """Each way has its turns, what is taken for the better one first."""
        self.earned = {True: Earned(), False: Earned()}
        self.turns_left = 2 * TRIAL_TURNS
        self._begin_turn(running, ahead=self.better)

    def _begin_turn(self, running: int, *, ahead: bool) -> None:
        self.ahead, self.num_skipped = ahead, running
        self.rounds_left = running * TRIAL_ROUNDS

    def _end_trial(self, running: int) -> None:
        """Keep the better way."""
        ahead, in_turns = self.earned[True].rate, self.earned[False].rate
        if ahead and in_turns:
            self.gain = MEMORY * self.gain + math.log(ahead / in_turns)
        self.known, self.better, self.turns_left = True, self.gain > 0, 0
        self.ahead, self.rounds_left = self.better, running * KEPT_ROUNDS

    @property
    def _is_clear(self) -> bool:
        """Whether one way is far behind, after as many turns of both."""
        worse, better = sorted(earned.rate for earned in self.earned.values())
        return self.turns_left % 2 == 0 and worse < FAR_BEHIND * better


class AheadTrials:
    """Both ways under each load. Loads within a power of two are one."""

    def __init__(self) -> None:
        self._by_load: dict[int, LoadTrials] = {}

    def allow(self, running: int) -> bool:
        """Whether sequences may draft ahead now. One alone takes nothing from anybody."""
        return running < 2 or self._under(running).ahead

    def observe(self, running: int, tokens: int, seconds: float, *, ahead: bool) -> None:
        """Count a round: its tokens, and the seconds from the end of one emit to the next."""
        if running >= 2:
            self._under(running).observe(running, tokens, seconds, ahead=ahead)

    def _under(self, running: int) -> LoadTrials:
        load = running.bit_length()
        if load not in self._by_load:
            self._by_load[load] = LoadTrials(self._is_better_near(load))
        return self._by_load[load]

    def _is_better_near(self, load: int) -> bool:
        """Whether drafting ahead is better under the nearest load that is known; else it is not."""
        known = [other for other, trials in self._by_load.items() if trials.known]
        nearest = min(known, key=lambda other: abs(other - load), default=None)
        return nearest is not None and self._by_load[nearest].better
