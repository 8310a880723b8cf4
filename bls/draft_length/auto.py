"""The draft length ``auto``: for each load, the arm with the most expected tokens per second.

    tokens per second = tokens emitted per round / (fixed + each * tokens drafted per round)

`arms` defines what an arm is and estimates the tokens. `costs` estimates the seconds. The target
alone is one of the choices. `DraftPlanner` plans for all requests of a loop. `AutoLength` is one
sequence's view of it: requests differ only in their level, which follows from the recent acceptance
rate of their own drafts.
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
    OWN_MEMORY,
    PRIOR,
    STOP_PROBABILITIES,
    Acceptance,
    Arms,
    Floats,
)
from tandem.bls.draft_length.costs import LoadCosts
from tandem.bls.draft_length.experiments import Mode
from tandem.bls.drafters.registry import DrafterName
from tandem.bls.ports import Draft, DraftPlan, EngineResult

MIN_LAST_ACCEPTANCE = 0.1  # the last token of a branch is accepted with at least this probability
LEVELS = 5  # of requests, by how many draft tokens in a row are usually right: 1, 2, 4, 8 or 16
SEQUENCES_PER_SAMPLE = 4  # with n running sequences, one draft in 1 + n // 4 asks for log-probs
# Plain calls are shorter while matches pay, because a match may be right soon. Short calls take
# longer per token, so matches must be faster than the alternatives by this factor.
MIN_LOOKUP_GAIN = 1.05
# Initial acceptance rates of lookup drafts after n-grams of 1, 2, 3, and 4 or more tokens.
LOOKUP_ACCEPTANCE = (0.3, 0.6, 0.7, 0.8)


class DraftChoice(NamedTuple):
    """The best choice for requests of one level under one load.

    draft: plan of the best draft. speed: its expected tokens per second. pays: whether drafting is
    at least as fast as the target alone.
    """

    draft: DraftPlan
    speed: float
    pays: bool


class LoadPlans:
    """The plans and costs for one load, which is rounded to 1, 2, 4, 8, ... sequences."""

    def __init__(self) -> None:
        self.costs = LoadCosts()
        self.choices: list[DraftChoice] = []  # [LEVELS]
        # Tokens per second of lookup drafts, [num_groups, num_lengths].
        self.lookup_speeds: Floats = np.zeros((1, 1))


class DraftPlanner:
    """Plans the drafts of all requests of a loop. Thread-safe.

    load: function that returns the number of sequences in all loops that are decoding or about to
    start. clock: function that returns the time in seconds, the same in all loops.
    stops_when_unsure: whether the draft engine reports probabilities and can stop when they fall
    too low. has_draft_model: if not, all drafts are matches, which cost only their verification.
    """

    def __init__(
        self,
        max_draft_len: int,
        load: Callable[[], int] = lambda: 1,
        *,
        clock: Callable[[], float],
        stops_when_unsure: bool,
        has_draft_model: bool = True,
    ) -> None:
        self._stops_when_unsure, self._load, self._clock = stops_when_unsure, load, clock
        self._has_draft_model = has_draft_model
        self._without_draft_model: dict[DrafterName, DraftPlanner] = {}
        longest = max(1, max_draft_len)
        self._lengths = [n for n in LENGTHS if n < longest] + [longest]
        stops = STOP_PROBABILITIES if stops_when_unsure else (0.0,)
        self._drafts = [
            DraftPlan(length, stop, wants_log_probs=stops_when_unsure)
            for stop, length in itertools.product(stops, self._lengths)
        ]
        self._arms = Arms(self._lengths, stops, 1 + LEVELS)  # groups: all requests, each level
        # Groups: n-gram sizes of the match.
        self._lookup_arms = Arms(self._lengths, (0.0,), len(LOOKUP_ACCEPTANCE))
        self._lookup_arms.expect(LOOKUP_ACCEPTANCE, PRIOR)
        self._acceptance = Acceptance()
        self._plans: dict[int, LoadPlans] = {}  # key: rounded log2 of the load
        self._draft_numbers = itertools.count()
        self._lock = threading.RLock()

    def without_draft_model(self, drafter: DrafterName) -> DraftPlanner:
        """Return the planner of a drafter whose drafts cost only their verification."""
        with self._lock:
            return self._without_draft_model.setdefault(
                drafter,
                DraftPlanner(
                    self._lengths[-1],
                    self._load,
                    clock=self._clock,
                    stops_when_unsure=False,
                    has_draft_model=False,
                ),
            )

    def level(self, own: Acceptance) -> int:
        """Return the level of a request from the acceptance rate of its own drafts."""
        right = 1 / (1 - own.rate(self._acceptance.rate()))  # tokens per round, unlimited drafts
        return min(LEVELS - 1, int(math.log2(right)))

    def current_plans(self) -> LoadPlans:
        """Return the plans for the current load."""
        number = round(math.log2(max(1, self._load())))
        return self._plans.get(number) or self._plans.setdefault(number, LoadPlans())

    def plan(self, level: int, limit: int) -> DraftPlan:
        """Plan the next draft of a request. limit: maximum number of draft tokens (>= 1)."""
        plans, now = self.current_plans(), self._clock()
        mode = plans.costs.mode(now)
        pays = not plans.choices or plans.choices[level].pays
        alone = mode is Mode.NO_DRAFTS or (mode is Mode.BEST and not pays)
        if alone or not self._has_draft_model:
            return DraftPlan(0, plain_tokens=plans.costs.plain_tokens(now))
        if not plans.choices:
            first = min(limit, plans.costs.first_tokens)
            return DraftPlan(first, wants_log_probs=self._stops_when_unsure)
        choice = plans.choices[level]
        is_sample = not next(self._draft_numbers) % (1 + self._load() // SEQUENCES_PER_SAMPLE)
        num_tokens = min(limit, choice.draft.num_tokens)
        return choice.draft._replace(
            num_tokens=num_tokens, wants_log_probs=self._stops_when_unsure and is_sample
        )

    def length_ahead(self, own: Acceptance) -> int:
        """Return the best number of tokens per branch if drafting ahead takes no extra time."""
        rate = own.rate(self._acceptance.rate())
        return min(max(1, int(math.log(MIN_LAST_ACCEPTANCE) / math.log(rate))), self._lengths[-1])

    def lookup_length(self, level: int, match: Draft) -> int:
        """Return how many tokens of a lookup draft to verify. 0: don't use it."""
        plans = self.current_plans()
        mode = plans.costs.mode(self._clock())
        if mode is Mode.NO_DRAFTS:
            return 0
        if not plans.choices:
            return min(len(match), plans.costs.first_tokens)
        fitting = bisect.bisect_left(self._lengths, len(match)) + 1
        speeds = plans.lookup_speeds[_ngram_group(match)][:fitting]
        best = int(speeds.argmax())
        pays = mode is Mode.DRAFTING or speeds[best] >= MIN_LOOKUP_GAIN * max(
            plans.choices[level].speed, plans.costs.plain_speed
        )
        return min(len(match), self._lengths[best]) if pays else 0

    @property
    def mode(self) -> Mode:
        """Mode of all sequences in the current slot."""
        return self.current_plans().costs.mode(self._clock())

    def record_round(
        self, draft: Draft, num_accepted: int, seconds: float, level: int, *, timed: bool
    ) -> None:
        """Record a round. timed: whether to learn from its duration."""
        with self._lock:
            plans, rate = self.current_plans(), self._acceptance.rate()
            if draft.result is None:
                self.observe_lookup(draft, num_accepted)
            elif not self._stops_when_unsure or draft.result.log_probs is not None:
                round_ = self._arms.as_every_arm(draft, num_accepted, rate)
                self._arms.add(round_, 0, 1 + level)
            self._end_slot(plans)  # this round belongs to the slot in which it ends
            if timed:
                self._count(plans.costs, draft, seconds)
                self._end_slot(plans)  # a first measurement may end with this round

    def observe_lookup(self, match: Draft, num_right: int) -> None:
        """Record how many tokens of a lookup draft were right, whether it was verified or not."""
        with self._lock:
            round_ = self._lookup_arms.as_every_arm(match, num_right, self._acceptance.rate())
            self._lookup_arms.add(round_, _ngram_group(match))

    def record_acceptance(self, draft: Draft, num_accepted: int) -> None:
        """Record the acceptance of a draft from the draft model."""
        with self._lock:
            self._acceptance.add(num_accepted, len(draft), MEMORY)

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of ``num_tokens`` tokens that the target decoded alone."""
        with self._lock:
            plans, now = self.current_plans(), self._clock()
            self._end_slot(plans)
            if plans.costs.is_settled(now - seconds):
                plans.costs.plain.add(0, seconds, steps=num_tokens)
                self._end_slot(plans)

    def _count(self, costs: LoadCosts, draft: Draft, seconds: float) -> None:
        now = self._clock()
        # Requests without access to the draft model use lookup drafts even in slots without drafts.
        if costs.mode(now) is Mode.NO_DRAFTS or not costs.is_settled(now - seconds):
            return
        if draft.result is None and self._has_draft_model:
            costs.lookup.add(len(draft), seconds)
            return
        result = draft.result or EngineResult(draft.tokens)
        engine_seconds = result.engine_seconds or result.seconds
        costs.drafting.add(len(result.tokens), seconds, engine=engine_seconds)

    def _end_slot(self, plans: LoadPlans) -> None:
        if plans.costs.end_slot(self._clock(), max(1, self._load())):
            self._replan(plans)

    def _replan(self, plans: LoadPlans) -> None:
        """Make a plan for each level, if costs and acceptance rates are known."""
        costs = plans.costs
        if not costs.known:
            return
        fixed, each = costs.drafting.coefficients()
        if not self._has_draft_model:
            plans.choices = [DraftChoice(DraftPlan(0), 0.0, pays=False)] * LEVELS
            plans.lookup_speeds = self._lookup_arms.speeds(fixed, each)[:, 0]
            return
        if not self._arms.rounds[0]:
            return
        speeds = self._arms.speeds(fixed, each, first_is_all=True)
        by_arm = speeds.reshape(len(speeds), -1)
        choices = []
        for level in range(1, 1 + LEVELS):
            arm = int(by_arm[level].argmax())
            speed = float(by_arm[level, arm])
            choices.append(DraftChoice(self._drafts[arm], speed, speed >= costs.plain_speed))
        plans.choices = choices
        lookup_costs = costs.lookup.coefficients() if costs.lookup.known else (fixed, 0.0)
        plans.lookup_speeds = self._lookup_arms.speeds(*lookup_costs)[:, 0]


class AutoLength:
    """Chooses the draft length with the most expected tokens per second, or none at all."""

    def __init__(self, planner: DraftPlanner) -> None:
        self._planner = planner
        self._own = Acceptance()
        self._level = planner.level(self._own)
        self._caught_up = False  # whether the draft model has cached nearly all of the context
        self._plans: LoadPlans | None = None  # at the end of the last round; None: before the first

    @property
    def length_ahead(self) -> int:
        """Number of tokens per branch if drafting ahead takes no extra time."""
        return self._planner.length_ahead(self._own)

    def plan(self, limit: int) -> DraftPlan:
        """Plan a draft of at most ``limit`` tokens (>= 1)."""
        return self._planner.plan(self._level, limit)

    def lookup_length(self, match: Draft) -> int:
        """Return how many tokens of a lookup draft to verify. 0: don't use it."""
        return self._planner.lookup_length(self._level, match)

    def observe_lookup(self, match: Draft, num_right: int) -> None:
        """Record how many tokens of a lookup draft were right that the target didn't verify."""
        self._planner.observe_lookup(match, num_right)

    def allows_drafts(self) -> bool:
        """Return whether drafts of any kind, including copies and branches, are allowed now."""
        return self._planner.mode is not Mode.NO_DRAFTS

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Record a round. The draft may be from prompt lookup.

        If it was drafted ahead, only its acceptance counts, because the round doesn't predict the
        costs of other rounds.
        """
        timed = self._load_stayed() and (draft.result is None or self._caught_up)
        if not draft.drafted_ahead:
            self._planner.record_round(draft, num_accepted, seconds, self._level, timed=timed)
        if draft.result is not None or draft.drafted_ahead:
            self._caught_up = True
            self._planner.record_acceptance(draft, num_accepted)
            self._own.add(num_accepted, len(draft), OWN_MEMORY)
            self._level = self._planner.level(self._own)

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        """Record a target call without a draft."""
        self._caught_up = False
        if self._load_stayed() and num_tokens:
            self._planner.observe_plain_call(num_tokens, seconds)

    def _load_stayed(self) -> bool:
        """Return whether the load is the same as at the end of the previous round."""
        before, self._plans = self._plans, self._planner.current_plans()
        return before is self._plans


def _ngram_group(match: Draft) -> int:
    """Return the group of a lookup draft, an index into LOOKUP_ACCEPTANCE, by its n-gram's size."""
    return min(max(1, match.num_matching), len(LOOKUP_ACCEPTANCE)) - 1
