"""The number of draft tokens per round: a fixed number, or ``auto``, which learns it.

For each load, ``auto`` takes the arm with the most expected tokens per second.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.bls.costs import CALL_WEIGHT, LoadCosts, Mode
from tandem.bls.drafters.registry import DrafterName
from tandem.bls.ports import Draft, DraftPlan, EngineResult
from tandem.bls.request import Request
from tandem.bls.seeds import output_depends_on_lengths
from tandem.bls.settings import AUTO, LoopSettings

# Replaces `auto` if the output for a seed depends on draft lengths.
SEEDED_LENGTH = 5


class FixedLength:
    """Uses the same draft length in every round. `AutoLength` documents the methods."""

    call_overhead = 1.0

    def __init__(self, num_tokens: int) -> None:
        self.length_ahead = num_tokens

    def plan(self, limit: int) -> DraftPlan:
        return DraftPlan(min(limit, self.length_ahead))

    def lookup_length(self, match: Draft) -> int:
        return len(match)

    def observe_lookup(self, match: Draft, num_right: int) -> None:
        """Do nothing."""

    def allows_drafts(self) -> bool:
        return True

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Do nothing."""

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        """Do nothing."""

    def observe_call_time(self, num_tokens: int, seconds: float) -> None:
        """Do nothing."""


def fixed_length(request: Request, settings: LoopSettings) -> FixedLength | None:
    """Return the draft length of a request, or None if `auto` chooses its lengths."""
    if request.draft_len != AUTO:
        return FixedLength(request.draft_len)
    if output_depends_on_lengths(request, settings):
        return FixedLength(min(SEEDED_LENGTH, request.max_draft_len))
    return None


Floats = NDArray[np.float64]

LENGTHS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
STOP_PROBABILITIES = (0.0, 0.1, 0.2, 0.35, 0.5)
MEMORY = 0.998  # decay per round, over all requests: about the last 500 rounds count
OWN_MEMORY = 0.9  # decay per round of one request: about its last 10 rounds count
PRIOR = 8.0  # weight of priors: in tokens for acceptance rates, in rounds for arms


class Acceptance:
    """Acceptance rate (alpha in Leviathan et al.): of tokens whose predecessors were accepted."""

    def __init__(self) -> None:
        self._accepted = self._decided = 0.0

    def add(self, num_accepted: int, num_drafted: int, memory: float) -> None:
        """Record a verified draft. memory: weight of all earlier drafts."""
        self._accepted = memory * self._accepted + num_accepted
        self._decided = memory * self._decided + min(num_accepted + 1, num_drafted)

    def rate(self, prior: float = 0.5) -> float:
        """Return the acceptance rate, at most 0.99. prior: rate assumed before the first draft."""
        return min(0.99, (self._accepted + PRIOR * prior) / (self._decided + PRIOR))


class Arms:
    """Running sums of the tokens that each arm drafts and emits, per group of rounds.

    rates: assumed acceptance rates, one per group. They count as much as ``PRIOR`` rounds.
    """

    def __init__(
        self, lengths: Sequence[int], stops: Sequence[float], rates: Sequence[float]
    ) -> None:
        self._lengths = np.array(lengths, float)
        self._doubts = np.array([-math.log(stop) if stop else math.inf for stop in stops])
        self._rounds = np.full(len(rates), PRIOR)
        # [num_groups, 2 (drafted, emitted), num_stops, num_lengths]
        self._sums = np.zeros((len(rates), 2, len(stops), len(lengths)))
        rate = np.array(rates)[:, None, None]
        self._sums[:, 0] = PRIOR * self._lengths
        self._sums[:, 1] = PRIOR * (1 - rate ** (self._lengths + 1)) / (1 - rate)

    def add(self, round_: Floats, group: int) -> None:
        """Add a round (see `as_every_arm`) to a group."""
        self._rounds[group] = MEMORY * self._rounds[group] + 1
        self._sums[group] *= MEMORY
        self._sums[group] += round_

    def speeds(self, fixed: float, each: float) -> Floats:
        """Return tokens per second, [num_groups, num_stops, num_lengths].

        fixed, each: seconds per round and per drafted token.
        """
        drafted, emitted = self._sums[:, 0], self._sums[:, 1]
        speeds: Floats = emitted / (self._rounds[:, None, None] * fixed + each * drafted)
        return speeds

    def as_every_arm(self, draft: Draft, num_accepted: int, rate: float) -> Floats:
        """Return the tokens each arm would have drafted and emitted, [2, num_stops, num_lengths].

        rate: acceptance rate assumed for tokens beyond a fully accepted draft.
        """
        round_ = np.empty(self._sums.shape[1:])
        drafted, emitted = round_
        drafted[:] = self._lengths
        log_probs = draft.result.log_probs if draft.result else None
        if log_probs is not None:
            doubt = -np.cumsum(log_probs[: len(draft)], dtype=np.float64)
            ends = doubt.searchsorted(self._doubts, side="right") + 1.0
            ends[ends > len(doubt)] = math.inf  # the draft never fell below the stop probability
            np.minimum(drafted, ends[:, None], out=drafted)
        np.minimum(drafted, num_accepted, out=emitted)
        emitted += 1.0
        if num_accepted == len(draft):
            beyond = np.maximum(0.0, drafted - len(draft))
            emitted += rate * (1 - rate**beyond) / (1 - rate)
        return round_


MIN_LAST_ACCEPTANCE = 0.1  # the last token of a branch is accepted with at least this probability
# Initial acceptance rates of levels. Levels group requests by how many of their draft tokens in a
# row are usually right: 1, 2, 4, 8 or 16.
LEVEL_ACCEPTANCE = (0.3, 0.65, 0.8, 0.9, 0.95)
LEVELS = len(LEVEL_ACCEPTANCE)
SEQUENCES_PER_SAMPLE = 4  # with n running sequences, one draft in 1 + n // 4 asks for log-probs
# Plain calls are shorter while matches pay, because a match may be right soon. Short calls take
# longer per token, so matches must be faster than the alternatives by this factor.
MIN_LOOKUP_GAIN = 1.05
# A new load begins with the costs of the next lower one, down to 1 / 2**NEAR_LOAD of it. They are
# too low, so what is used turns out slower than expected, and the alternative is tried soon. Costs
# of a higher load would be too high: the alternative would seem slow until the next experiment.
NEAR_LOAD = 2
# Initial acceptance rates of copies after 1, 2, 4, and 8 or more matching tokens
LOOKUP_ACCEPTANCE = (0.3, 0.6, 0.7, 0.9)


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
        # Tokens per second of lookup drafts, [num_groups, num_lengths]. Other threads read them as
        # soon as there are choices, so they are set first.
        self.lookup_speeds: Floats = np.zeros((1, 1))
        self.choices: list[DraftChoice] = []  # [LEVELS]


class DraftPlanner:
    """Plans the drafts of all requests of a loop. Thread-safe.

    load: function that returns the number of sequences that are decoding or about to start. clock:
    function that returns the time in seconds. stops_when_unsure: whether the draft engine reports
    probabilities and can stop when they fall too low. has_draft_model: if not, drafts cost only
    their verification.
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
        self._arms = Arms(self._lengths, stops, LEVEL_ACCEPTANCE)  # groups: levels
        # Groups: numbers of matching tokens.
        self._lookup_arms = Arms(self._lengths, (0.0,), LOOKUP_ACCEPTANCE)
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

    @property
    def _load_number(self) -> int:
        return round(math.log2(max(1, self._load())))

    def current_plans(self) -> LoadPlans:
        """Return the plans for the current load. A new load begins with a lower one's costs."""
        number = self._load_number
        if plans := self._plans.get(number):
            return plans
        with self._lock:
            plans = LoadPlans()
            for lower in range(number - 1, number - NEAR_LOAD - 1, -1):
                if lower in self._plans and self._plans[lower].costs.can_be_prior:
                    plans.costs = self._plans[lower].costs.as_prior()
                    break
            return self._plans.setdefault(number, plans)

    def plan(self, level: int, limit: int) -> DraftPlan:
        """Plan the next draft of a request. limit: maximum number of draft tokens (>= 1)."""
        plans = self._begin_round()
        mode = plans.costs.mode
        pays = not plans.choices or plans.choices[level].pays
        alone = mode is Mode.NO_DRAFTS or (mode is Mode.BEST and not pays)
        if alone or not self._has_draft_model:
            return DraftPlan(0, plain_tokens=plans.costs.plain_tokens(self._clock()))
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
        plans = self._begin_round()
        mode = plans.costs.mode
        if mode is Mode.NO_DRAFTS:
            return 0
        if not plans.choices:
            return min(len(match), plans.costs.first_tokens)
        fitting = bisect.bisect_left(self._lengths, len(match)) + 1
        speeds = plans.lookup_speeds[_match_group(match)][:fitting]
        best = int(speeds.argmax())
        pays = mode is Mode.DRAFTING or speeds[best] >= MIN_LOOKUP_GAIN * max(
            plans.choices[level].speed, plans.costs.plain_speed
        )
        return min(len(match), self._lengths[best]) if pays else 0

    def table(self, drafter: DrafterName) -> dict[str, Any] | None:
        """Return what `auto` has measured at the current load, or None before it has.

        Its tokens per round apply to a new request. If the drafter doesn't call the draft model,
        they apply to copies after the longest matches.
        """
        if planner := self._without_draft_model.get(drafter):
            return planner.table(drafter)
        costs = self.current_plans().costs
        if not costs.known:
            return None
        arms, group = self._lookup_arms, len(LOOKUP_ACCEPTANCE) - 1
        if self._has_draft_model:
            arms, group = self._arms, self.level(Acceptance())
        fixed, each = costs.drafting.coefficients()
        emitted = arms.speeds(1.0, 0.0)[group, 0].tolist()  # without a stop probability
        return {
            "load": 2**self._load_number,
            "plain_ms_per_token": 1000 * costs.plain.average,
            "drafts": [
                {"num_tokens": n, "ms": 1000 * (fixed + each * n), "tokens_per_round": tokens}
                for n, tokens in zip(self._lengths, emitted, strict=True)
            ],
        }

    @property
    def mode(self) -> Mode:
        """Mode of all sequences in the current slot."""
        return self.current_plans().costs.mode

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
                self._arms.add(round_, level)
            if timed:
                self._count(plans.costs, draft, seconds)

    def observe_lookup(self, match: Draft, num_right: int) -> None:
        """Record how many tokens of a lookup draft were right, whether it was verified or not."""
        with self._lock:
            round_ = self._lookup_arms.as_every_arm(match, num_right, self._acceptance.rate())
            self._lookup_arms.add(round_, _match_group(match))

    def record_acceptance(self, draft: Draft, num_accepted: int) -> None:
        """Record the acceptance of a draft from the draft model."""
        with self._lock:
            self._acceptance.add(num_accepted, len(draft), MEMORY)

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of ``num_tokens`` tokens that the target decoded alone."""
        with self._lock:
            costs = self.current_plans().costs
            if costs.is_settled(self._clock() - seconds):
                costs.plain.add(0, seconds, steps=num_tokens)

    def observe_call_time(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of a call for ``num_tokens`` tokens."""
        with self._lock:
            calls = self.current_plans().costs.calls
            # Until sizes differ, a fifth of each call counts as overhead.
            calls.record(num_tokens, seconds, CALL_WEIGHT, engine=0.8 * seconds)

    def _count(self, costs: LoadCosts, draft: Draft, seconds: float) -> None:
        # Requests without access to the draft model use lookup drafts even in slots without drafts.
        if costs.mode is Mode.NO_DRAFTS or not costs.is_settled(self._clock() - seconds):
            return
        if draft.result is None and self._has_draft_model:
            costs.lookup.add(len(draft), seconds)
            return
        result = draft.result or EngineResult(draft.tokens)
        engine_seconds = result.engine_seconds or result.seconds
        costs.drafting.add(len(result.tokens), seconds, engine=engine_seconds)

    def _begin_round(self) -> LoadPlans:
        """Return the plans for the current load. If a slot has ended, they are new."""
        with self._lock:
            plans = self.current_plans()
            if plans.costs.end_slot(self._clock(), max(1, self._load())):
                self._replan(plans)
            return plans

    def _replan(self, plans: LoadPlans) -> None:
        """Make a plan for each level, if costs are known."""
        costs = plans.costs
        if not costs.known:
            return
        fixed, each = costs.drafting.coefficients()
        if not self._has_draft_model:
            plans.lookup_speeds = self._lookup_arms.speeds(fixed, each)[:, 0]
            plans.choices = [DraftChoice(DraftPlan(0), 0.0, pays=False)] * LEVELS
            return
        choices = []
        for speeds in self._arms.speeds(fixed, each):
            arm = int(speeds.argmax())
            speed = float(speeds.flat[arm])
            choices.append(DraftChoice(self._drafts[arm], speed, speed >= costs.plain_speed))
        lookup_costs = costs.lookup.coefficients() if costs.lookup.known else (fixed, 0.0)
        plans.lookup_speeds = self._lookup_arms.speeds(*lookup_costs)[:, 0]
        plans.choices = choices


class AutoLength:
    """Chooses the draft length with the most expected tokens per second, or none at all."""

    def __init__(self, planner: DraftPlanner) -> None:
        self._planner = planner
        self._own = Acceptance()
        self._level = planner.level(self._own)
        self._caught_up = False  # whether the draft model has cached nearly all of the context
        self._plans: LoadPlans | None = None  # at the end of the last round; None: before the first

    @property
    def call_overhead(self) -> float:
        """What a call without a draft costs in addition to its tokens, in tokens."""
        return self._planner.current_plans().costs.call_overhead

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

    def observe_call_time(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of a target call without a draft, which may be a short one."""
        self._planner.observe_call_time(num_tokens, seconds)

    def _load_stayed(self) -> bool:
        """Return whether the load is the same as at the end of the previous round."""
        before, self._plans = self._plans, self._planner.current_plans()
        return before is self._plans


def _match_group(match: Draft) -> int:
    """Return the group of a copy, an index into LOOKUP_ACCEPTANCE, by its matching tokens."""
    return min(int(math.log2(max(1, match.num_matching))), len(LOOKUP_ACCEPTANCE) - 1)
