"""Drafting ahead: while the target verifies a draft, the draft engine drafts what may follow.

A verification of the draft d_1..d_n ends in an **outcome**: the number j of accepted tokens and the
next token x. For a likely outcome, the draft engine drafts a **branch**: tokens that follow the
context, d_1..d_j and x. If the actual outcome has a branch (a **hit**), the next round's draft is
ready. Otherwise that round calls the draft engine as usual.

Drafting ahead changes how many tokens a draft has, never the tokens themselves: a branch holds the
tokens that a draft call after its outcome would have returned.

Source: Kumar et al., "Speculative Speculative Decoding", arXiv:2603.03251; Liu et al., "PEARL",
arXiv:2408.11850.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.bls.costs import CALL_WEIGHT, LinearCost
from tandem.bls.draft_length import MEMORY, Acceptance
from tandem.bls.drafters.registry import DRAFT_MODEL
from tandem.bls.errors import EngineCallError
from tandem.bls.ports import (
    NO_DRAFT,
    NO_TOKENS,
    BranchDraft,
    Branching,
    Draft,
    EngineCall,
    EngineResult,
    Engines,
)
from tandem.bls.request import Request, TokenIds
from tandem.bls.seeds import output_depends_on_lengths
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings

# If the draft's most likely token is wrong, the target's token is among its F next most likely ones
# with probability 1 - (F + 1) ** -RANK_EXPONENT. Kumar et al. found this power law. The value is in
# the range measured for the demo pair (benchmarks/logbook/2026-11-studies.md, "Next guesses").
RANK_EXPONENT = 0.67
BUDGETS = (4, 8, 16, 32, 64, 128)  # possible numbers of branches per call


class AheadPlan(NamedTuple):
    """A plan for drafting ahead.

    num_tokens: number of tokens per branch. num_branches: number of branches per call.
    """

    num_tokens: int
    num_branches: int


# Used until the costs of calls are known.
FIRST_PLAN = AheadPlan(num_tokens=4, num_branches=BUDGETS[1])


@lru_cache(4096)
def split(budget: int, acceptance: float, wanted: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the number of branches F_j for each accepted length j, [num_draft_tokens + 1].

    wanted: whether the accepted length may have branches, [num_draft_tokens + 1]. The counts sum to
    ``budget`` unless no branch is wanted. They maximize the probability of a hit:

        sum over j of P(j) * (1 - (F_j + 1) ** -r),  P(j) = a ** j * (1 - a)

    with acceptance rate a and r = RANK_EXPONENT. At the maximum, F_j + 1 is proportional to
    a ** (j / (1 + r)). For j < num_draft_tokens, the draft's own next token is excluded because it
    was rejected. After a fully accepted draft, that token is a candidate too, so F_j replaces
    F_j + 1 there.

    Source: Kumar et al., "Speculative Speculative Decoding", arXiv:2603.03251.
    """
    places = np.arange(len(wanted))
    weights = np.where(wanted, acceptance ** (places / (1 + RANK_EXPONENT)), 0.0)
    excluded = np.where(places < len(wanted) - 1, 1.0, 0.0)  # the rejected draft token
    ideal = _at_least_none(weights, excluded, budget)
    counts = np.floor(ideal).astype(int)
    rest = np.argsort(counts - ideal, kind="stable")[: budget - counts.sum()]
    counts[rest] += 1
    return tuple(np.where(wanted, counts, 0).tolist())


def _at_least_none(
    weights: NDArray[np.float64], excluded: NDArray[np.float64], budget: int
) -> NDArray[np.float64]:
    """Return scale * weights - excluded, clipped at 0; the scale makes it sum to ``budget``."""
    chosen = weights > 0
    while chosen.any():
        scale = (budget + excluded[chosen].sum()) / weights[chosen].sum()
        counts = np.where(chosen, scale * weights - excluded, 0.0)
        if (counts >= 0).all():
            return counts
        chosen &= counts >= 0
    return np.zeros(len(weights))


def hit_chance(num_tokens: int, num_branches: int, acceptance: float) -> float:
    """Return the probability that the outcome of a verification has a branch."""
    counts = np.array(split(num_branches, acceptance, (True,) * (num_tokens + 1)))
    reached = acceptance ** np.arange(num_tokens + 1)
    found = 1 - (counts[:-1] + 1.0) ** -RANK_EXPONENT
    hits = float((reached[:-1] * (1 - acceptance) * found).sum())
    if counts[-1]:
        hits += float(reached[-1] * (1 - (1 - acceptance) * counts[-1] ** -RANK_EXPONENT))
    return hits


def emitted(num_tokens: int, acceptance: float) -> float:
    """Return the expected number of tokens that a round with ``num_tokens`` draft tokens emits."""
    return (1 - acceptance ** (num_tokens + 1)) / (1 - acceptance)


class Costs(NamedTuple):
    """Costs of engine calls in seconds. A pair is (fixed cost, cost per unit)."""

    target: tuple[float, float]  # one verification; unit: draft tokens
    step: tuple[float, float]  # one step of the draft engine; unit: branches
    overhead: float  # of one draft call, outside the engine

    def verification(self, num_tokens: int) -> float:
        """Return the duration of verifying ``num_tokens`` draft tokens, in seconds."""
        return self.target[0] + self.target[1] * num_tokens

    def draft(self, num_tokens: int) -> float:
        """Return the duration of a draft call for ``num_tokens`` without branches, in seconds."""
        return self.overhead + num_tokens * (self.step[0] + self.step[1])

    def fitting(self, longest: int, num_branches: int) -> int:
        """Return the length of the longest branches that are complete when the target answers.

        Assumes that the draft under verification has the same length. A call for branches needs one
        extra step.
        """
        step = self.step[0] + self.step[1] * num_branches
        for num_tokens in range(longest, 0, -1):
            if self.overhead + step * (num_tokens + 1) <= self.verification(num_tokens):
                return num_tokens
        return 0


def best_plan(
    costs: Costs, acceptance: float, longest: int, max_branches: int
) -> tuple[AheadPlan, float]:
    """Return the plan with the most expected tokens per second, and its speedup.

    The speedup is relative to rounds that don't draft ahead. If no branch would be complete in
    time, returns the smallest plan with speedup 0.
    """
    best, best_speed = AheadPlan(1, BUDGETS[0]), 0.0
    for budget in BUDGETS:
        if budget > max(max_branches, BUDGETS[0]):
            break
        num_tokens = costs.fitting(longest, budget)
        hits = hit_chance(num_tokens, budget, acceptance)
        seconds = costs.verification(num_tokens) + (1 - hits) * costs.draft(num_tokens)
        if num_tokens and emitted(num_tokens, acceptance) / seconds > best_speed:
            best_speed = emitted(num_tokens, acceptance) / seconds
            best = AheadPlan(num_tokens, budget)
    without = max(
        emitted(n, acceptance) / (costs.verification(n) + costs.draft(n))
        for n in range(1, longest + 1)
    )
    return best, best_speed / without


ALL_BRANCHES = 128  # branches of all sequences; each sequence gets at least `BUDGETS[0]`
PLAN_EVERY = 16  # rounds of all requests between plans; costs change slowly
MAX_LOAD = 4  # by default, no drafting ahead with more sequences: they fill the draft engine


class AheadPlanner:
    """Plans drafting ahead for all requests of a loop. Thread-safe.

    load: function that returns the number of sequences that are decoding or about to start.
    """

    def __init__(
        self,
        settings: LoopSettings,
        load: Callable[[], int] = lambda: 1,
    ) -> None:
        self._shares_device = settings.engines_share_device
        self._load = load
        self._lock = threading.Lock()
        self._acceptance = defaultdict[str, Acceptance](Acceptance)  # by drafter
        self._target = LinearCost()  # of a verification, by draft tokens
        self._step = LinearCost()  # of a step of the draft engine, by branches
        self._overhead = LinearCost()  # of a draft call outside the engine; its size is 0
        # longest -> (number of rounds when the plan was made, plan, its speedup).
        self._plans: dict[int, tuple[int, AheadPlan, float]] = {}
        self._rounds = 0

    def acceptance(self, drafter: str) -> float:
        """Return the acceptance rate of draft tokens whose predecessors were all accepted."""
        return max(0.05, self._acceptance[drafter].rate())

    def seconds(self, num_tokens: int) -> float:
        """Return the duration of a draft call for ``num_tokens``, in seconds; 0 if unknown."""
        with self._lock:
            costs = self._costs()
        return costs.draft(num_tokens) if costs else 0.0

    def record_acceptance(self, draft: Draft, num_accepted: int) -> None:
        """Record the verification of a draft.

        Drafts with a stop probability don't count toward the acceptance rate: they end before most
        wrong tokens, so their rate is too high for other drafts.
        """
        stopped = draft.plan is not None and draft.plan.stop_probability > 0
        with self._lock:
            self._rounds += 1
            if not stopped:
                self._acceptance[draft.drafter].add(num_accepted, len(draft), MEMORY)

    def record_round_time(self, draft: Draft, seconds: float) -> None:
        """Record the duration of a round.

        Drafting ahead can use the whole round except the round's draft call.
        """
        result = draft.result
        with self._lock:
            seconds_after_draft = seconds - (result.seconds if result else 0.0)
            self._target.record(len(draft), seconds_after_draft, CALL_WEIGHT)
            if result is not None and len(result.tokens):
                self._add_call(result, len(result.tokens), 1)

    def record_branch_time(self, result: EngineResult, num_tokens: int, num_branches: int) -> None:
        """Record the duration of a call for branches.

        num_tokens: maximum number of tokens per branch. A call without branches in its result
        counts only if it was stopped for being late, not if the engine lacked memory for branches.
        """
        with self._lock:
            costs = self._costs()
            late = costs is not None and result.seconds > costs.verification(0)
            if result.branches or late:
                self._add_call(result, num_tokens + 1, num_branches)

    def plan(self, longest: int, *, always: bool) -> AheadPlan | None:
        """Return a plan for branches, or None if drafting ahead doesn't pay.

        longest: maximum number of tokens per branch (>= 1). always: plan even if drafting ahead
        doesn't pay. Each sequence gets fewer branches as the load grows.
        """
        load = max(1, self._load())
        if not always and (self._shares_device or load > MAX_LOAD):
            return None
        with self._lock:
            made, plan, advantage = self._plans.get(longest, (-PLAN_EVERY, None, 0.0))
            if self._rounds - made >= PLAN_EVERY:
                costs = self._costs()
                if costs is None:
                    return FIRST_PLAN._replace(num_tokens=min(longest, FIRST_PLAN.num_tokens))
                acceptance = self.acceptance(DRAFT_MODEL.name)
                share = ALL_BRANCHES // load
                plan, advantage = best_plan(costs, acceptance, longest, share)
                self._plans[longest] = self._rounds, plan, advantage
        return plan if always or advantage > 1 else None

    def _costs(self) -> Costs | None:
        """Return the costs of engine calls, or None if they aren't known yet."""
        costs = Costs(
            self._target.coefficients(), self._step.coefficients(), self._overhead.average
        )
        return costs if costs.verification(1) > 0 and sum(costs.step) > 0 else None

    def _add_call(self, result: EngineResult, steps: int, num_branches: int) -> None:
        working = result.engine_seconds or result.seconds
        self._step.record(num_branches, working / steps, CALL_WEIGHT)
        self._overhead.record(0, max(0.0, result.seconds - working), CALL_WEIGHT)


@dataclass(frozen=True)
class BranchesAhead:
    """The branches for the possible outcomes of one verification.

    start: number of context tokens before the verified draft. draft: that draft.
    """

    start: int
    draft: TokenIds  # [num_draft_tokens]
    by_outcome: Mapping[tuple[int, int], BranchDraft]

    def __len__(self) -> int:
        return len(self.by_outcome)

    def after(self, sequence: Sequence) -> BranchDraft | None:
        """Return the branch that continues exactly this sequence, or None."""
        new = sequence.context[self.start :]
        num_accepted = len(new) - 1
        if not 0 <= num_accepted <= len(self.draft):
            return None
        if not np.array_equal(new[:-1], self.draft[:num_accepted]):
            return None
        return self.by_outcome.get((num_accepted, int(new[-1])))


def index_by_outcome(start: int, draft: TokenIds, result: EngineResult) -> BranchesAhead:
    """Map outcomes to the branches of an engine's result. Leaves out empty branches."""
    by_outcome = {(b.num_accepted, b.next_token): b for b in result.branches if len(b.tokens)}
    return BranchesAhead(start, draft, by_outcome)


def plan_branches(
    sequence: Sequence, draft: TokenIds, plan: AheadPlan, room: int, acceptance: float
) -> Branching | None:
    """Return the branches to request for the outcomes of a draft, or None if none is possible.

    room: number of tokens that the draft engine can process after the context. acceptance:
    acceptance rate of the draft's tokens.
    """
    lengths = branch_lengths(sequence, draft, plan.num_tokens, room)
    wanted = tuple(length > 0 for length in lengths)
    counts = split(plan.num_branches, round(acceptance, 2), wanted)
    return Branching(counts, lengths) if sum(counts) else None


def branch_lengths(
    sequence: Sequence, draft: TokenIds, longest: int, room: int
) -> tuple[int, ...]:  # [num_draft_tokens + 1]
    """Return the maximum branch length after each accepted length (0: no branch).

    A branch has the same limit as a draft after the same outcome. Until ``min_tokens`` is reached,
    a call bans end-of-sequence tokens in every branch. So outcomes that would reach ``min_tokens``,
    where these tokens must be allowed, have no branch. No branch follows an end of sequence.
    """
    min_tokens_left = sequence.min_tokens_left
    end = sequence.find_eos(draft)
    lengths = []
    for num_accepted in range(len(draft) + 1):
        new = num_accepted + 1
        length = min(longest, sequence.draft_limit(new), room - new)
        reaches_min_tokens = 0 < min_tokens_left <= new
        beyond_end = end is not None and num_accepted > end
        lengths.append(0 if reaches_min_tokens or beyond_end else max(0, length))
    return tuple(lengths)


class DraftAhead:
    """Drafting ahead for one request. always: draft ahead even if it doesn't pay."""

    def __init__(self, planner: AheadPlanner, *, always: bool) -> None:
        self.planner = planner
        self._always = always
        self._rounds = 0
        # The branches that are being drafted: the call's result, the maximum length of a branch,
        # the length of the call's context, and the draft that is being verified.
        self._drafting: tuple[Future[EngineResult], int, int, TokenIds] | None = None

    def plan(self, longest: int) -> AheadPlan | None:
        """Return a plan for branches of at most ``longest`` tokens (>= 1), or None.

        Call it at the start of each verification.
        """
        self.give_up()
        return self.planner.plan(longest, always=self._always)

    def start(
        self,
        sequence: Sequence,
        draft: Draft,
        plan: AheadPlan,
        call: EngineCall,
        *,
        room: int,
        engines: Engines,
    ) -> bool:
        """Start drafting branches for the outcomes of the verification of ``draft``.

        Returns whether a call began. call: draft engine call for the context before the draft.
        room: see `plan_branches`.
        """
        acceptance = self.planner.acceptance(draft.drafter)
        branching = plan_branches(sequence, draft.tokens, plan, room, acceptance)
        if branching is None:
            return False
        longest = max(branching.lengths)
        future = engines.call_ahead(
            call._replace(max_new_tokens=longest, draft=draft, branching=branching)
        )
        if future is None:
            return False

        def record(ended: Future[EngineResult]) -> None:
            if ended.exception() is None:
                count = sum(branching.counts)
                self.planner.record_branch_time(ended.result(), longest, count)

        future.add_done_callback(record)
        self._drafting = future, longest, len(call.context), draft.tokens
        return True

    def branch(
        self, sequence: Sequence, verifiable: Callable[[TokenIds], TokenIds], engines: Engines
    ) -> Draft:
        """Wait for the branches, at most as long as a new draft would take.

        Returns the branch for exactly this sequence, or an empty draft. verifiable: function that
        cuts drafted tokens to those that the target can verify in this round.
        """
        if self._drafting is None:
            return NO_DRAFT
        future, longest, start, drafted = self._drafting
        try:
            result = future.result(self.planner.seconds(longest))
        except futures.TimeoutError:  # not the built-in one before Python 3.11
            engines.stop_ahead()
            self.give_up()
            return NO_DRAFT
        except EngineCallError:
            self._drafting = None
            raise
        branches = index_by_outcome(start, drafted, result)
        branch = branches.after(sequence)
        tokens = NO_TOKENS if branch is None else verifiable(branch.tokens)
        if branch is None or not len(tokens):
            self.give_up()
            return Draft(num_branches=len(branches))
        self._drafting = None
        return Draft(
            tokens,
            drafter=DRAFT_MODEL.name,
            num_branches=len(branches),
            drafted_ahead=True,
            seconds_saved=self.planner.seconds(len(tokens)),
        )

    def give_up(self) -> None:
        """Drop the branches that are being drafted."""
        self._drafting = None

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Record a round. The duration of the first one is ignored: it includes the prefill."""
        self._rounds += 1
        self.planner.record_acceptance(draft, num_accepted)
        if self._rounds > 1:
            self.planner.record_round_time(draft, seconds)


def make_draft_ahead(
    request: Request, settings: LoopSettings, planner: AheadPlanner | None
) -> DraftAhead | None:
    """Return the request's ``DraftAhead``, or None if it never drafts ahead.

    In logits mode the target needs a draft's logits, and the logits of all branches are too large
    to exchange. The output of a seeded request must not depend on which branches are ready in time.
    With a guide, branches would have to include forced tokens.
    """
    if planner is None or not settings.draft_branches or request.draft_ahead is False:
        return None
    if request.guide or request.use_draft_logits or output_depends_on_lengths(request, settings):
        return None
    return DraftAhead(planner, always=request.draft_ahead is True)
