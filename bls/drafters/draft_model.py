"""Drafts by a small model."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tandem.bls.draft_ahead.branches import (
    BranchesAhead,
    BranchLogits,
    DraftAhead,
    branches_of,
    branching_of,
    draft_ahead_of,
)
from tandem.bls.draft_ahead.cost_model import AheadPlan
from tandem.bls.draft_length.auto import AutoLength
from tandem.bls.draft_length.fixed import SEEDED_LENGTH, DraftLength, FixedLength
from tandem.bls.drafters.drafter import (
    Drafter,
    DrafterContext,
    DrafterHealth,
    Proposal,
    StepsAhead,
)
from tandem.bls.drafters.registry import DRAFT_MODEL
from tandem.bls.effects import AwaitAhead, Draft, DraftPlan, EngineCall, StepSeconds
from tandem.bls.errors import EngineCallError, EngineRefused
from tandem.bls.exactness.seeds import lengths_decide_text, proposal_seed
from tandem.bls.request import Request, TokenIds
from tandem.bls.sequence import Sequence
from tandem.bls.settings import AUTO, EngineSettings


class DraftModel(Drafter):
    """A small model that shares the target's vocabulary (Leviathan et al., arXiv:2211.17192)."""

    def __init__(
        self,
        draft: EngineSettings,
        target: EngineSettings,
        health: DrafterHealth,
        length: DraftLength,
        ahead: DraftAhead | None = None,
    ) -> None:
        self._engine = draft
        self._target = target
        self._health = health
        self._length = length
        self._ahead = ahead
        self._asked_ahead = False  # whoever calls this drafter has drafts made ahead
        self._drafts_ahead = False  # steps beside the last round's verification, not settled yet
        self._branch_logits: BranchLogits | None = None  # theirs, until they are read or given up
        self._can_serve = True  # this request: what it cannot take once it never can
        self._num_checked = 0  # tokens of the context that the draft engine is known to have

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether the draft engine is well and can take the context and one token more."""
        return (
            self._health.available and self._room(sequence) > 0 and self._takes_context_of(sequence)
        )

    def failed(self, error: EngineCallError) -> None:
        """Let the draft model rest; where it refused the call, for this request alone."""
        if isinstance(error, EngineRefused):
            self._can_serve = False
            self._health.refused(error)
        else:
            self._health.failed(error)

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Ask the draft engine for the next tokens, as many as are worth it now.

        It is given no end id: an engine that stops there drops the token, and the target could not
        confirm it. Stop ids stay in its answer.
        """
        request = sequence.request
        limit = min(limit, self._room(sequence))
        waited = self._drafts_ahead
        branches = yield from self._settled()
        branch = self._branch(branches, sequence, limit)
        if branch is not None:
            self._branch_logits = None
            return branch
        self._give_up_logits()
        plan = self._planned(limit)
        if not plan.num_tokens:
            return Draft(plain_tokens=plan.plain_tokens)
        answer = yield self._call(sequence)._replace(
            max_new_tokens=plan.num_tokens,
            wants_logits=request.use_draft_logits,
            wants_log_probs=plan.wants_log_probs,
            stop_probability=plan.stop_probability,
            unread_logits=self._ahead.statistics.next_unread_logits() if self._ahead else None,
        )
        if request.use_draft_logits and answer.logits is None:
            raise EngineRefused(self._engine.model, "generation_logits are missing from its answer")
        return Draft(
            self._draft_tokens(sequence, answer.tokens),
            answer.logits,
            drafter=DRAFT_MODEL.name,
            plan=plan,
            answer=answer,
            waited=waited,
            num_branches=len(branches or ()),
        )

    def draft_ahead(self, sequence: Sequence, draft: Draft) -> StepsAhead | None:
        """Return the steps that draft behind the likely outcomes of a draft's verification.

        The draft may be anybody's: prompt lookup's too.
        """
        self._asked_ahead, self._drafts_ahead = True, False
        self._give_up_logits()
        plan = self._plan_ahead()
        if self._ahead is None or plan is None or not self.can_draft(sequence):
            return None
        if not self.allows_drafts():
            return None
        if (draft.tokens >= self._engine.vocab_size).any():
            return None
        acceptance = self._ahead.statistics.acceptance(draft.drafter)
        branching = branching_of(sequence, draft.tokens, plan, self._room(sequence), acceptance)
        if branching is None:
            return None
        self._drafts_ahead = True
        self._branch_logits = BranchLogits(self._ahead.statistics.unread_logits)
        call = self._call(sequence)._replace(
            max_new_tokens=max(branching.lengths),
            wants_logits=sequence.request.use_draft_logits,
            draft=draft,
            branching=branching,
        )
        return self._steps_ahead(self._ahead, call, sum(branching.counts), self._branch_logits)

    def allows_drafts(self) -> bool:
        """Whether any draft is worth being made now, also a copy."""
        return self._length.allows_drafts()

    def copy_length(self, copied: Draft) -> int:
        """How much of a copy is worth being verified, instead of asking the draft engine."""
        return self._length.copy_length(copied)

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Let the next lengths follow from it."""
        if self._ahead is not None:
            self._ahead.verified(draft, num_accepted, seconds)
        self._length.verified(draft, num_accepted, seconds)

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Let the next lengths follow from it."""
        self._length.observe_plain_step(num_tokens, seconds)

    def _call(self, sequence: Sequence) -> EngineCall:
        """Return the draft engine's call behind a sequence, of no length yet."""
        request = sequence.request
        return EngineCall(
            engine="draft",
            context=sequence.context,
            max_new_tokens=0,
            seed=proposal_seed(
                request.sampling.seed,
                len(sequence),
                keyed=self._engine.capabilities.keyed_randomness,
                use_draft_logits=request.use_draft_logits,
            ),
            stop_ids=self._stop_ids(sequence),
            ban_end_ids=sequence.min_tokens_left > 0,
        )

    def completed(self, sequence: Sequence) -> None:  # noqa: ARG002
        """Give up what was drafted behind the end."""
        self._give_up_logits()

    def _give_up_logits(self) -> None:
        if self._branch_logits is not None:
            self._branch_logits.give_up()
        self._branch_logits = None

    @staticmethod
    def _steps_ahead(
        ahead: DraftAhead, call: EngineCall, num_branches: int, logits: BranchLogits
    ) -> StepsAhead:
        """Make the call, learn what it took, and return its branches."""
        unread = ahead.statistics.next_unread_logits()
        answer = yield call._replace(unread_logits=unread)
        logits.came(answer.logits)
        ahead.statistics.timed_branches(answer, call.max_new_tokens, num_branches)
        return branches_of(len(call.context), call.draft.tokens, answer)

    def _settled(self) -> Generator[AwaitAhead, Any, BranchesAhead | None]:
        """Take what was drafted ahead of this round, if it is there in time.

        It is not worth waiting for it longer than for another draft.
        """
        if self._ahead is None or not self._drafts_ahead:
            return None
        self._drafts_ahead = False
        try:
            branches: BranchesAhead | None = yield AwaitAhead(self._timeout)
        except EngineRefused as error:
            self._ahead.refused = True
            self._health.refused(error)
            return None
        return branches

    def _branch(
        self, branches: BranchesAhead | None, sequence: Sequence, limit: int
    ) -> Draft | None:
        """Return the draft that was made ahead for exactly this context, if there is one.

        It is cut to what may be verified now, as any draft is.
        """
        branch = None if branches is None else branches.behind(sequence)
        if self._ahead is None or branches is None or branch is None:
            return None
        tokens = self._draft_tokens(sequence, branch.tokens[:limit])
        if not len(tokens):
            return None
        return Draft(
            tokens,
            branches.logits,
            branch.logits_row,
            drafter=DRAFT_MODEL.name,
            num_branches=len(branches),
            drafted_ahead=True,
            seconds_saved=self._ahead.statistics.seconds(len(tokens)),
        )

    def _planned(self, limit: int) -> DraftPlan:
        """Plan a draft that the round waits for: shorter where others need no wait."""
        ahead = self._plan_ahead() if self._asked_ahead else None
        if ahead is None:
            return self._length.plan(limit)
        return self._length.plan(min(limit, ahead.on_miss), ahead=True)

    def _plan_ahead(self) -> AheadPlan | None:
        """How to draft ahead now, no longer than is worth it in turns; None: not at all."""
        return None if self._ahead is None else self._ahead.plan(self._length.length_ahead)

    @property
    def _timeout(self) -> float:
        """Seconds to wait for branches that are late: no longer than for a new draft."""
        plan = self._plan_ahead()
        if self._ahead is None or plan is None:
            return 0.0
        return self._ahead.statistics.seconds(plan.on_miss)

    def _stop_ids(self, sequence: Sequence) -> tuple[int, ...]:
        """Ends of sequence, at which a draft may end; the token is in it.

        In logits mode an engine that ends early may bring other logits than those of its tokens.
        """
        request = sequence.request
        return () if request.use_draft_logits or sequence.min_tokens_left else request.end_ids

    def _takes_context_of(self, sequence: Sequence) -> bool:
        """Whether the draft engine has every id of the context; looks at new ones only."""
        if self._engine.vocab_size < self._target.vocab_size:
            new = sequence.context[self._num_checked :]
            self._num_checked = len(sequence)
            self._can_serve &= bool((new < self._engine.vocab_size).all())
        return self._can_serve

    def _draft_tokens(self, sequence: Sequence, tokens: TokenIds) -> TokenIds:
        """Return what is verified of tokens that were drafted behind a sequence.

        What was drafted behind an end of sequence is cut; not in logits mode, where a token that
        was drawn is never dropped (the target's end of sequence ends it).
        """
        tokens = self._within_vocabulary(tokens)
        return tokens if sequence.request.use_draft_logits else sequence.up_to_end(tokens)

    def _within_vocabulary(self, tokens: TokenIds) -> TokenIds:
        """``tokens`` up to the first id that the target does not have: the draft's own padding."""
        if self._engine.vocab_size <= self._target.vocab_size:
            return tokens
        unknown = (tokens >= self._target.vocab_size).nonzero()[0]
        return tokens[: unknown[0]] if len(unknown) else tokens

    def _room(self, sequence: Sequence) -> int:
        return self._engine.max_seq_len - len(sequence)


def make(request: Request, context: DrafterContext) -> DraftModel:
    """Return the drafter of one request; raise ValueError where there is no draft engine."""
    settings = context.settings
    if settings.draft is None:
        raise ValueError("there is no draft engine")
    length = _length_of(request, context)
    ahead = draft_ahead_of(request, settings, context.ahead_planner)
    return DraftModel(settings.draft, settings.target, context.health, length, ahead)


def _length_of(request: Request, context: DrafterContext) -> DraftLength:
    if request.draft_len != AUTO:
        return FixedLength(request.draft_len)
    if lengths_decide_text(request, context.settings):
        return FixedLength(min(SEEDED_LENGTH, request.max_draft_len))
    return AutoLength(context.draft_planner)
