"""The draft length ``auto`` of one sequence: maximizes the expected tokens per second.

Requests differ only in their level, which follows from the recent acceptance rate of their own
drafts. They share all other statistics (`planner`).
"""

from __future__ import annotations

from tandem.bls.draft_length.arms import OWN_MEMORY, Acceptance
from tandem.bls.draft_length.experiments import Mode
from tandem.bls.draft_length.planner import DraftPlanner, LoadPlans
from tandem.bls.effects import Draft, DraftPlan


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
