"""Whether a way to decode pays where several sequences share a machine, found out by trying.

What a sequence measures of its own calls does not tell what it takes from the others: time of
processors, of a lock, of an engine. One stream that drafts among many that do not may gain
threefold, until all of them do and all are slower. So all sequences go the way for some tokens,
then none does, and again: a trial. The better of both is kept until the next one. Only rates of one
trial are compared, because the machine and the texts change; how they compared in trials before
counts for less and less.

Two ways are tried so: to draft at all (``bls.draft_length``), and to draft ahead
(``bls.draft_ahead``). Where several loops serve an entry, one of them tries and all go its way.
"""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from tandem.bls.other_loops import Decision, Decisions, OwnDecisions

TURN_TOKENS = 40  # of each sequence, before the other way has its turn
TRIAL_TURNS = 3  # of each way, in a trial
FIRST_TOKENS = 1024  # of all sequences, before the first trial: many a load lasts for moments only
PIECE = 16  # tokens in one call, at most, in a trial: whoever is in a long one changes late
PATIENCE = 64  # tokens of each sequence that a turn waits for those that have not changed yet
IN_VAIN = 64  # rounds in a row of each sequence that did not go a turn's way: it cannot be gone now
MEMORY = 0.5  # how much of what a trial has found outlives the next one
FAR_BEHIND = 0.8  # of the other way's tokens a second: no other turn will change that
HOPELESS = 0.5  # of them: a turn ends with it, as soon as it has taken as long as the other way's
LEAST_GAIN = 0.02  # logarithmic, before a way is better: where both are as good, it only costs work
MOST_TOLD = 0.4  # logarithmic gain that one trial tells: the machine may have stood still in it
KEPT_TOKENS = 4096  # of each sequence, by the better way, and in proportion where the gain is more
SURE = 0.1  # than this
MOST_LEFT = 10  # times that turns of one trial are left: very short bursts would end none of them


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


class LeftTurn(NamedTuple):
    """What a turn had before it, of each sequence, as its load was left."""

    allowed: bool
    tokens: float
    rounds: float


@dataclass
class OneLoad:
    """What is done now under one load, and what was earned in the trial under way.

    better: what trials have found: True is the way, False to leave it. allowed: what all sequences
    do now. tokens_left, rounds_left: of each sequence, until that changes. num_late: sequences that
    did not leave the way before yet; num_early: rounds in which it has a part all the same;
    patience: tokens of each sequence, until late ones are waited for no more; num_in_vain: rounds
    since one went the way of this turn. turns_left: in the trial under way; none: the better way is
    kept. left: its turn that was left and will go on; num_left: how many turns of it were.
    """

    first_of_each: int  # tokens of each sequence, before the first trial
    turn_rounds: int  # of each sequence, in a turn at least
    better: bool
    known: bool = False  # that it is
    allowed: bool = False
    tokens_left: float | None = None  # None: nothing was counted yet
    rounds_left: float = 0
    num_late: int = 0
    num_early: int = 0
    patience: float = 0
    num_in_vain: int = 0
    turns_left: int = 0
    left: LeftTurn | None = None
    num_left: int = 0
    earned: dict[bool, Earned] = field(default_factory=dict)
    gain: float = 0.0  # logarithm of what is earned by the way, over what is without

    def __post_init__(self) -> None:
        """Begin with what is taken for the better way."""
        self.allowed = self.better

    @property
    def decision(self) -> Decision:
        """What sequences do now, and whether that is about to change."""
        return Decision(self.allowed, on_trial=self.has_turn)

    @property
    def has_turn(self) -> bool:
        """Whether a turn of a trial is under way: what is done is measured, and will change."""
        return self.turns_left > 0 and self.left is None

    def observe(self, running: int, tokens: int, seconds: float, *, allowed: bool) -> None:
        """Count a round; one that began before the way changed belongs to no turn.

        running: sequences of which this is one. It may change in a turn: others end, or go to
        another loop.
        """
        if self.tokens_left is None:
            first = max(FIRST_TOKENS / running, self.first_of_each)
            self.tokens_left = first / 2 ** max(0, self.num_left - 1)
        if allowed != self.allowed:
            self.num_late -= 1
            self.num_in_vain += 1
            if self.has_turn and self.num_in_vain > IN_VAIN * running:
                self._end_trial(running)
            return
        self.num_in_vain = 0
        if self._is_early(running, tokens):
            return
        if self.has_turn and seconds:
            self.earned[allowed].add(tokens, seconds)
        self.tokens_left -= tokens / running
        self.rounds_left -= 1 / running
        if max(self.tokens_left, self.rounds_left) > 0 and not self._is_hopeless:
            return
        if not self.turns_left:
            self._begin_trial(running)
            return
        if self.left:
            self._go_on(running, self.left)
            return
        self.turns_left -= 1
        if not self.turns_left or self._is_clear:
            self._end_trial(running)
        else:
            self._begin_turn(running, allowed=not self.allowed)

    def _is_early(self, running: int, tokens: int) -> bool:
        """Whether the way before has a part in this round of a turn."""
        self.num_late = min(self.num_late, running - 1)
        self.num_early = min(self.num_early, running) - 1
        self.patience -= tokens / running
        return self.num_early >= 0 or (self.num_late > 0 and self.patience > 0)

    def _begin_trial(self, running: int) -> None:
        """Each way has its turns, what is taken for the better one first."""
        self.earned = {True: Earned(), False: Earned()}
        self.turns_left, self.num_left = 2 * TRIAL_TURNS, 0
        self._begin_turn(running, allowed=self.better)

    def _begin_turn(self, running: int, *, allowed: bool) -> None:
        if allowed != self.allowed:
            self.num_late, self.num_early = running - 1, running
            self.patience = PATIENCE
        self.allowed = allowed
        self.tokens_left, self.rounds_left = TURN_TOKENS, self.turn_rounds

    def _end_trial(self, running: int) -> None:
        """Keep the better way: the longer, the surer it is that the next trial finds the same.

        Where one of them could not be timed, what was taken for the better one stays so.
        """
        with_it, without = self.earned[True].rate, self.earned[False].rate
        if with_it and without:
            told = max(-MOST_TOLD, min(math.log(with_it / without), MOST_TOLD))
            self.gain = MEMORY * self.gain + told
            self.known, self.better = True, self.gain > LEAST_GAIN
        self.turns_left = 0
        self._begin_turn(running, allowed=self.better)
        self.tokens_left = KEPT_TOKENS * max(1.0, abs(self.gain) / SURE)

    def pause(self) -> None:
        """Note that this load has ended, perhaps in a turn, which goes on after it is back.

        Until then the better way is gone: a burst of requests passes through the loads of the last
        one's end, and shall not meet a turn of a trial that ended with them. Each time that is for
        half as long, so that a trial ends where all bursts are short. In the end the turn goes on
        at once: where bursts are of two rounds each, all of them would be late or early.
        """
        if not self.has_turn or self.tokens_left is None or self.num_left == MOST_LEFT:
            return
        self.left = LeftTurn(self.allowed, self.tokens_left, self.rounds_left)
        self.num_left += 1
        self.num_late = self.num_early = 0
        self.allowed, self.tokens_left, self.rounds_left = self.better, None, 0

    def _go_on(self, running: int, turn: LeftTurn) -> None:
        """Go on with a turn that was left."""
        self.left = None
        self._begin_turn(running, allowed=turn.allowed)
        self.tokens_left, self.rounds_left = turn.tokens, turn.rounds

    @property
    def _is_hopeless(self) -> bool:
        """Whether this turn's way is so far behind that the rest of the turn tells nothing else."""
        if not self.has_turn:
            return False
        this, other = self.earned[self.allowed], self.earned[not self.allowed]
        return this.seconds >= other.seconds and this.rate < HOPELESS * other.rate

    @property
    def _is_clear(self) -> bool:
        """Whether one way is far behind, after as many turns of both."""
        worse, better = sorted(earned.rate for earned in self.earned.values())
        return self.turns_left % 2 == 0 and 0 < worse < FAR_BEHIND * better


class LoadTrials:
    """Trials under each load. Thread-safe. Loads of 3 to 5 sequences are one, 6 to 11, and so on.

    A load ends once there are more sequences, or fewer than half: where it lies at a bound, each
    one that came or went would change the way of all, and turns of both would be mixed. A trial
    that its load leaves goes on once it is back.

    first: whether the way is taken for the better one until something is known. first_of_each:
    tokens of each sequence, before the first trial of a load. turn_rounds: of each sequence, that a
    turn lasts at least. decisions: of this loop, and of the one that decides for it.
    """

    def __init__(
        self,
        decisions: Decisions | None = None,
        *,
        first: bool,
        first_of_each: int,
        turn_rounds: int = 1,
    ) -> None:
        self._first, self._first_of_each = first, first_of_each
        self._turn_rounds = turn_rounds
        self._decisions = decisions or OwnDecisions()
        self._by_load: dict[int, OneLoad] = {}
        self._load = 0  # the last one; 0: it has ended, or another loop decides
        self._told: dict[int, Decision] = {}
        self._lock = threading.Lock()

    def allow(self, running: int) -> bool:
        """Whether sequences may go this way now. One alone takes nothing from anybody."""
        if running < 2:
            self.leave()
            return True
        return self._decision(running).allowed

    def on_trial(self, running: int) -> bool:
        """Whether what is allowed is about to change."""
        return running >= 2 and self._decision(running).on_trial

    def longest_piece(self, running: int, longest: int) -> int:
        """How many tokens to decode in one call, where it could be so many."""
        return min(longest, PIECE) if self.on_trial(running) else longest

    def observe(self, running: int, tokens: int, seconds: float, *, allowed: bool) -> None:
        """Count a round: its tokens, and the seconds from the end of one emit to the next.

        allowed: whether it went this way. seconds: 0 where they say nothing; the tokens count, so
        that answers which are one call each end a turn as well.
        """
        load = _load_of(running)
        if running < 2 or self._decisions.to_follow(load) is not None:
            return
        here = self._num_here(running)
        with self._lock:
            trials = self._under(running)
            if allowed == trials.allowed:
                self._decisions.counted()
            trials.observe(here, tokens, seconds, allowed=allowed)
            self._tell(load, trials.decision)

    def count(self, running: int, tokens: int) -> bool:
        """Count a round of this way of which only the tokens matter.

        Returns False in a turn, where all of it matters: it has to be observed. Tokens of a
        sequence that is alone are none of a load's.
        """
        if running < 2:
            return True
        followed = self._decisions.to_follow(_load_of(running))
        if followed is not None:
            return not followed.on_trial
        here = self._num_here(running)
        with self._lock:
            trials = self._under(running)
            if trials.has_turn:
                return False
            if trials.allowed:
                self._decisions.counted()
            if trials.tokens_left is not None:
                trials.tokens_left -= tokens / here
        return True

    def leave(self) -> None:
        """Note that the last load has ended: one sequence is left, or none may go this way."""
        if self._load:
            with self._lock:
                self._end_load()

    def _num_here(self, running: int) -> int:
        """How many of these sequences are this loop's."""
        return max(1, running - self._decisions.num_elsewhere())

    def _decision(self, running: int) -> Decision:
        """Return what was decided under this load, by whichever loop decides."""
        load = _load_of(running)
        followed = self._decisions.to_follow(load)
        if followed is not None:
            self.leave()
            return followed
        with self._lock:
            decision = self._under(running).decision
            self._tell(load, decision)
        return decision

    def _tell(self, load: int, decision: Decision) -> None:
        """Tell other loops what has changed."""
        if self._told.get(load) != decision:
            self._told[load] = decision
            self._decisions.tell(load, decision)

    def _under(self, running: int) -> OneLoad:
        load = _load_of(running)
        if load > self._load or 2 * running < 2**self._load:
            self._end_load()
            self._load = load
            self._begin_load()
        return self._by_load[self._load]

    def _begin_load(self) -> None:
        """Take for better what is under the nearest load that is known: that may be this one."""
        better = self._is_better_near(self._load)
        trials = self._by_load.get(self._load)
        if trials is None:
            self._by_load[self._load] = OneLoad(self._first_of_each, self._turn_rounds, better)
        elif not trials.turns_left:
            trials.better = trials.allowed = better

    def _end_load(self) -> None:
        """Note that the last load has ended, for this loop and for those that follow it.

        They ask by how many sequences decode, and a load lasts until these are half as many.
        """
        if ended := self._by_load.get(self._load):
            ended.pause()
            for load in (self._load, self._load - 1):
                self._tell(load, self._by_load.get(load, ended).decision)
        self._load = 0

    def _is_better_near(self, load: int) -> bool:
        """Whether the way is better under the nearest load that is known."""
        known = [other for other, trials in self._by_load.items() if trials.known]
        nearest = min(known, key=lambda other: abs(other - load), default=None)
        return self._first if nearest is None else self._by_load[nearest].better


@functools.cache
def _load_of(running: int) -> int:
    return round(math.log2(max(1, running)))
