"""Chooses the arm with the most expected tokens per second for each load.

    tokens per second = tokens emitted per round / (fixed + each * tokens drafted per round)

`arms` defines what an arm is and estimates the tokens. `costs` estimates the seconds. The target
alone is one of the choices.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tandem.bls.draft_length.arms import (
    LENGTHS,
    MEMORY,
    PRIOR,
    STOP_PROBABILITIES,
    Acceptance,
    Arms,
    Floats,
)
from tandem.bls.draft_length.costs import LoadCosts
from tandem.bls.draft_length.experiments import Mode
from tandem.bls.effects import Draft, DraftPlan

FIRST_TOKENS = 8  # draft length before anything is known
LEAST_LIKELY = 0.1  # the last token of a branch is accepted with at least this probability
LEVELS = 5  # levels of requests: about 1, 2, 4, 8 or 16 draft tokens are right in a row
SEQUENCES_PER_LESSON = 16  # with n sequences, one in 1 + n // 16 drafts requests probabilities
# Initial acceptance rates of copies after n-grams of 1, 2, 3, and 4 or more tokens.
COPY_ACCEPTANCE = (0.3, 0.6, 0.7, 0.8)


class DraftChoice(NamedTuple):
    """The best choice for requests of one level under one load.

    draft: plan of the best draft. speed: its expected tokens per second. pays: whether the target
    alone is slower.
    """

    draft: DraftPlan
    speed: float
    pays: bool


class LoadPlans:
    """The plans and costs for one load."""

    def __init__(self) -> None:
        self.costs = LoadCosts()
        self.choices: list[DraftChoice] = []  # [LEVELS]
        self.copy_speeds: Floats = np.zeros((1, 1))  # tokens per second, [num_groups, num_lengths]


class DraftPlanner:
    """Plans the drafts of all requests of a loop. Thread-safe.

    running: function that returns the number of running sequences in all loops. clock: function
    that returns the time in seconds, the same in all loops. rated: whether the draft engine reports
    probabilities and can stop when they fall too low.
    """

    def __init__(
        self,
        max_draft_len: int,
        running: Callable[[], int] = lambda: 1,
        *,
        clock: Callable[[], float],
        rated: bool,
    ) -> None:
        self._rated, self._running, self._clock = rated, running, clock
        longest = max(1, max_draft_len)
        self._lengths = [n for n in LENGTHS if n < longest] + [longest]
        stops = STOP_PROBABILITIES if rated else (0.0,)
        self._drafts = [
            DraftPlan(length, stop, wants_log_probs=rated)
            for stop, length in itertools.product(stops, self._lengths)
        ]
        self._arms = Arms(self._lengths, stops, 1 + LEVELS)  # groups: all requests, each level
        # Groups: n-gram sizes of the match.
        self._copies = Arms(self._lengths, (0.0,), len(COPY_ACCEPTANCE))
        self._copies.expect(COPY_ACCEPTANCE, PRIOR)
        self._acceptance = Acceptance()
        self._loads: dict[int, LoadPlans] = {}  # key: rounded log2 of the running sequences
        self._turns = itertools.count()
        self._lock = threading.RLock()

    def level(self, own: Acceptance) -> int:
        """Return the level of a request from the acceptance rate of its own drafts."""
        right = 1 / (1 - own.rate(self._acceptance.rate()))  # tokens per round, unlimited drafts
        return min(LEVELS - 1, int(math.log2(right)))

    def load(self) -> LoadPlans:
        """Return the plans for the current number of running sequences."""
        number = round(math.log2(max(1, self._running())))
        return self._loads.get(number) or self._loads.setdefault(number, LoadPlans())

    def plan(self, level: int, limit: int) -> DraftPlan:
        """Plan the next draft of a request. limit: maximum number of draft tokens (>= 1)."""
        load, now = self.load(), self._clock()
        mode = load.costs.mode(now)
        pays = not load.choices or load.choices[level].pays
        if mode is Mode.ALONE or (mode is Mode.BEST and not pays):
            return DraftPlan(0, plain_tokens=load.costs.plain_tokens(now))
        if not load.choices:
            return DraftPlan(min(limit, FIRST_TOKENS), wants_log_probs=self._rated)
        choice = load.choices[level]
        has_turn = not next(self._turns) % (1 + self._running() // SEQUENCES_PER_LESSON)
        num_tokens = min(limit, choice.draft.num_tokens)
        return choice.draft._replace(
            num_tokens=num_tokens, wants_log_probs=self._rated and has_turn
        )

    def length_ahead(self, own: Acceptance) -> int:
        """Return the best number of tokens per branch if drafting ahead takes no extra time."""
        rate = own.rate(self._acceptance.rate())
        return min(max(1, int(math.log(LEAST_LIKELY) / math.log(rate))), self._lengths[-1])

    def copy_length(self, level: int, copied: Draft) -> int:
        """Return how many copied tokens to verify (0: call the draft model instead)."""
        load = self.load()
        mode = load.costs.mode(self._clock())
        if mode is Mode.ALONE:
            return 0
        if mode is Mode.DRAFTING or not load.choices:
            return len(copied)
        fitting = bisect.bisect_left(self._lengths, len(copied)) + 1
        speeds = load.copy_speeds[_group_of(copied)][:fitting]
        best = int(speeds.argmax())
        pays = speeds[best] >= max(load.choices[level].speed, 1 / load.costs.seconds_alone)
        return min(len(copied), self._lengths[best]) if pays else 0

    @property
    def mode(self) -> Mode:
        """Mode of all sequences in the current slot."""
        return self.load().costs.mode(self._clock())

    def verified(
        self, draft: Draft, num_accepted: int, seconds: float, level: int, *, timed: bool
    ) -> None:
        """Record a round. timed: whether to learn from its duration."""
        with self._lock:
            load, rate = self.load(), self._acceptance.rate()
            if draft.answer is None:
                self.observe_copy(draft, num_accepted)
            elif not self._rated or draft.answer.log_probs is not None:
                round_ = self._arms.as_every_arm(draft, num_accepted, rate)
                self._arms.add(round_, 0, 1 + level)
            self._end_slot(load)
            if timed:
                self._count(load.costs, draft, seconds)
                self._end_slot(load)

    def observe_copy(self, copied: Draft, num_right: int) -> None:
        """Record how many tokens of a copy were right, whether it was verified or not."""
        with self._lock:
            copy = self._copies.as_every_arm(copied, num_right, self._acceptance.rate())
            self._copies.add(copy, _group_of(copied))

    def count_accepted(self, draft: Draft, num_accepted: int) -> None:
        """Record the acceptance of a draft from the draft model."""
        with self._lock:
            self._acceptance.add(num_accepted, len(draft), MEMORY)

    def observe_plain_step(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of ``num_tokens`` tokens that the target decoded alone."""
        with self._lock:
            load, now = self.load(), self._clock()
            self._end_slot(load)
            if load.costs.is_settled(now - seconds, now):
                load.costs.alone.count(0, seconds, steps=num_tokens)
                self._end_slot(load)

    def _count(self, costs: LoadCosts, draft: Draft, seconds: float) -> None:
        now = self._clock()
        # Requests that can't call the draft model copy even while all others decode alone.
        if costs.mode(now) is Mode.ALONE or not costs.is_settled(now - seconds, now):
            return
        if draft.answer is None:
            costs.copying.count(len(draft), seconds)
            return
        engine_seconds = draft.answer.engine_seconds or draft.answer.seconds
        costs.drafting.count(len(draft.answer.tokens), seconds, engine=engine_seconds)

    def _end_slot(self, load: LoadPlans) -> None:
        if load.costs.end_slot(self._clock(), max(1, self._running())):
            self._plan(load)

    def _plan(self, load: LoadPlans) -> None:
        """Make a plan for each level, if costs and acceptance rates are known."""
        costs = load.costs
        if not (costs.known and self._arms.rounds[0]):
            return
        fixed, each = costs.drafting.fit()
        speeds = self._arms.speeds(fixed, each, first_is_all=True)
        by_arm = speeds.reshape(len(speeds), -1)
        alone = 1 / costs.seconds_alone
        choices = []
        for level in range(1, 1 + LEVELS):
            arm = int(by_arm[level].argmax())
            speed = float(by_arm[level, arm])
            choices.append(DraftChoice(self._drafts[arm], speed, speed >= alone))
        load.choices = choices
        copy_costs = costs.copying.fit() if costs.copying.known else (fixed, 0.0)
        load.copy_speeds = self._copies.speeds(*copy_costs)[:, 0]
        costs.slots.fit(costs.drafting.average)


def _group_of(copied: Draft) -> int:
    """Return the copy's group, an index into COPY_ACCEPTANCE, by the size of its n-gram."""
    return min(max(1, copied.num_matching), len(COPY_ACCEPTANCE)) - 1
