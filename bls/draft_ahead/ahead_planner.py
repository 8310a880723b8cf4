"""Collects statistics about drafting ahead for all requests, and makes plans from them."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable

from tandem.bls.draft_ahead.cost_model import FIRST_PLAN, UNLIMITED, AheadPlan, Costs, best_plan
from tandem.bls.draft_length.arms import MEMORY, Acceptance
from tandem.bls.draft_length.costs import LinearCost
from tandem.bls.drafters.registry import DRAFT_MODEL
from tandem.bls.ports import Draft, DraftLogits, EngineResult
from tandem.bls.settings import LoopSettings

ALL_BRANCHES = 128  # branches of all sequences; each sequence gets at least `BUDGETS[0]`
PLAN_EVERY = 16  # rounds of all requests between plans; costs change slowly
MAX_LOAD = 4  # by default, no drafting ahead with more sequences: they fill the draft engine
CALL_WEIGHT = 0.1  # weight of one call in the learned costs: about the last 100 calls count
MAX_UNREAD = 64  # handles to return; the engine frees the memory of lost ones after a minute


class AheadPlanner:
    """Plans drafting ahead for all requests of a loop. Thread-safe.

    load: function that returns the number of sequences in all loops that are decoding or about to
    start.
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
        # (longest, max_tokens) -> (number of rounds when the plan was made, plan, its speedup).
        self._plans: dict[tuple[int, int], tuple[int, AheadPlan, float]] = {}
        self._rounds = 0
        # Handles to logits of branches that will not be read; see `DraftAhead.give_up`.
        self.unread_logits: deque[DraftLogits] = deque(maxlen=MAX_UNREAD)

    def acceptance(self, drafter: str) -> float:
        """Return the acceptance rate of draft tokens whose predecessors were all accepted."""
        return max(0.05, self._acceptance[drafter].rate())

    def seconds(self, num_tokens: int) -> float:
        """Return the duration of a draft call for ``num_tokens``, in seconds; 0 if unknown."""
        with self._lock:
            costs = self._costs()
        return costs.draft(num_tokens) if costs else 0.0

    def next_unread_logits(self) -> DraftLogits:
        """Return a handle that the next draft call should return to the engine, or None."""
        try:
            return self.unread_logits.popleft()
        except IndexError:
            return None

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

    def plan(self, longest: int, max_tokens: int = UNLIMITED, *, always: bool) -> AheadPlan | None:
        """Return a plan for branches, or None if drafting ahead doesn't pay.

        longest: maximum number of tokens per branch (>= 1). max_tokens: maximum number of tokens in
        all branches together. always: plan even if drafting ahead doesn't pay. Each sequence gets
        fewer branches as the load grows.
        """
        load = max(1, self._load())
        if not always and (self._shares_device or load > MAX_LOAD):
            return None
        with self._lock:
            limits = longest, max_tokens
            made, plan, advantage = self._plans.get(limits, (-PLAN_EVERY, None, 0.0))
            if self._rounds - made >= PLAN_EVERY:
                costs = self._costs()
                if costs is None:
                    return FIRST_PLAN._replace(num_tokens=min(longest, FIRST_PLAN.num_tokens))
                acceptance = self.acceptance(DRAFT_MODEL.name)
                share = ALL_BRANCHES // load
                plan, advantage = best_plan(costs, acceptance, longest, share, max_tokens)
                self._plans[limits] = self._rounds, plan, advantage
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
