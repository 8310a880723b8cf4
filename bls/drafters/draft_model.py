"""Proposes tokens that a small draft model generates."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

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
from tandem.bls.draft_length.fixed import SEEDED_LENGTH, FixedLength
from tandem.bls.drafters.drafter import (
    Drafter,
    DrafterContext,
    DrafterHealth,
    Proposal,
    StepsAhead,
)
from tandem.bls.drafters.registry import DRAFT_MODEL
from tandem.bls.effects import NO_TOKENS, AwaitAhead, Draft, EngineCall, StepSeconds
from tandem.bls.errors import EngineCallError, EngineRefused
from tandem.bls.exactness.seeds import lengths_decide_text, proposal_seed
from tandem.bls.request import Request, TokenIds
from tandem.bls.sequence import Sequence
from tandem.bls.settings import AUTO, EngineSettings


class DraftVocabulary(Protocol):
    """Converts one request's tokens between the vocabularies of the target and the draft engine."""

    def context(self, sequence: Sequence) -> TokenIds:
        """Return the text so far in the draft engine's ids, [n]; empty if that is impossible."""

    def stop_ids(self, sequence: Sequence) -> tuple[int, ...]:
        """Return the draft engine's ids that end a draft."""

    def verifiable(self, sequence: Sequence, drafted: TokenIds, limit: int) -> TokenIds:
        """Return the drafted tokens as at most ``limit`` ids that the target can verify."""


class SharedVocabulary:
    """One vocabulary for both engines. Its padding may differ."""

    def __init__(self, draft: EngineSettings, target: EngineSettings) -> None:
        self._draft_size = draft.vocab_size
        self._target_size = target.vocab_size
        self._num_checked = 0  # number of context tokens that were checked
        self._has_all = True

    def context(self, sequence: Sequence) -> TokenIds:
        """Return the context, or no tokens if the draft engine lacks an id. Checks only new ids."""
        if self._draft_size < self._target_size:
            new = sequence.context[self._num_checked :]
            self._num_checked = len(sequence)
            self._has_all &= bool((new < self._draft_size).all())
        return sequence.context if self._has_all else NO_TOKENS

    def stop_ids(self, sequence: Sequence) -> tuple[int, ...]:
        return () if sequence.min_tokens_left else sequence.request.end_ids

    def verifiable(self, sequence: Sequence, drafted: TokenIds, limit: int) -> TokenIds:
        """Return the drafted tokens that the target can verify.

        The draft is cut before the first id that exists only in the draft engine's padding. It is
        also cut after the first end of sequence, except in logits mode: dropping sampled tokens
        could bias the output, and the target stops at its own end of sequence.
        """
        tokens = drafted[:limit]
        if self._draft_size > self._target_size:
            unknown = (tokens >= self._target_size).nonzero()[0]
            tokens = tokens[: unknown[0]] if len(unknown) else tokens
        return tokens if sequence.request.use_draft_logits else sequence.up_to_end(tokens)


class DraftModel(Drafter):
    """Proposes tokens from a draft model (Leviathan et al., arXiv:2211.17192)."""

    def __init__(
        self,
        draft: EngineSettings,
        vocabulary: DraftVocabulary,
        health: DrafterHealth,
        length: FixedLength | AutoLength,
        ahead: DraftAhead | None = None,
    ) -> None:
        self._engine = draft
        self._vocabulary = vocabulary
        self._health = health
        self._length = length
        self._ahead = ahead
        self._asked_ahead = False  # whether `draft_ahead` has been called
        self._drafts_ahead = False  # whether `_awaited` must wait for branches
        self._branch_logits: BranchLogits | None = None  # until they are read or given up
        self._can_serve = True  # False after the draft engine rejected a call of this request

    def can_draft(self, sequence: Sequence) -> bool:
        """Return whether the draft engine is healthy and has room for the context and one token."""
        if not (self._can_serve and self._health.available):
            return False
        return 0 < len(self._vocabulary.context(sequence)) < self._engine.max_seq_len

    def failed(self, error: EngineCallError) -> None:
        """Pause the draft model or, if it rejected the call, stop drafting for this request."""
        if isinstance(error, EngineRefused):
            self._can_serve = False
            self._health.refused(error)
        else:
            self._health.failed(error)

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Return a branch that was drafted ahead, or call the draft engine.

        The call has stop ids instead of an end id. Engines keep a stop id in the answer but drop an
        end id, and the target couldn't verify a dropped token.
        """
        request = sequence.request
        longest = min(limit, self._engine.max_seq_len - len(self._vocabulary.context(sequence)))
        branches = yield from self._awaited()
        branch = self._branch(branches, sequence, longest)
        if branch is not None:
            self._branch_logits = None
            return branch
        self._give_up_logits()
        plan_ahead = self._plan_ahead() if self._asked_ahead else None
        if plan_ahead is None:
            plan = self._length.plan(longest)
        else:
            plan = self._length.plan(min(longest, plan_ahead.on_miss), ahead=True)
        if not plan.num_tokens:
            return Draft(plain_tokens=plan.plain_tokens)
        answer = yield self._call(sequence)._replace(
            max_new_tokens=plan.num_tokens,
            wants_logits=request.use_draft_logits,
            wants_log_probs=plan.wants_log_probs,
            stop_probability=plan.stop_probability,
            unread_logits=self._ahead.planner.next_unread_logits() if self._ahead else None,
        )
        if request.use_draft_logits and answer.logits is None:
            raise EngineRefused(self._engine.model, "generation_logits are missing from its answer")
        return Draft(
            self._vocabulary.verifiable(sequence, answer.tokens, limit),
            answer.logits,
            drafter=DRAFT_MODEL.name,
            plain_tokens=plan.num_tokens,  # used if no drafted token is verifiable
            plan=plan,
            answer=answer,
            num_branches=len(branches or ()),
        )

    def draft_ahead(self, sequence: Sequence, draft: Draft) -> StepsAhead | None:
        """Return steps that draft branches for the likely outcomes of verifying ``draft``.

        Any drafter may have proposed it, such as prompt lookup.
        """
        self._asked_ahead, self._drafts_ahead = True, False
        self._give_up_logits()
        plan = self._plan_ahead()
        if self._ahead is None or plan is None or not self.can_draft(sequence):
            return None
        if not self.allows_drafts() or (draft.tokens >= self._engine.vocab_size).any():
            return None
        room = self._engine.max_seq_len - len(sequence)
        acceptance = self._ahead.planner.acceptance(draft.drafter)
        branching = branching_of(sequence, draft.tokens, plan, room, acceptance)
        if branching is None:
            return None
        self._drafts_ahead = True
        self._branch_logits = BranchLogits(self._ahead.planner.unread_logits)
        call = self._call(sequence)._replace(
            max_new_tokens=max(branching.lengths),
            wants_logits=sequence.request.use_draft_logits,
            draft=draft,
            branching=branching,
        )
        return self._steps_ahead(self._ahead, call, sum(branching.counts), self._branch_logits)

    def allows_drafts(self) -> bool:
        """Return whether drafts of any kind, including copies, are worthwhile now."""
        return self._length.allows_drafts()

    def copy_length(self, copied: Draft) -> int:
        """Return how many copied tokens to verify (0: call the draft engine instead)."""
        return self._length.copy_length(copied)

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        if self._ahead is not None:
            self._ahead.verified(draft, num_accepted, seconds)
        self._length.verified(draft, num_accepted, seconds)

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        self._length.observe_plain_step(num_tokens, seconds)

    def completed(self, sequence: Sequence) -> None:  # noqa: ARG002
        """Return unread branch logits to the draft engine."""
        self._give_up_logits()

    def _call(self, sequence: Sequence) -> EngineCall:
        """Return a draft engine call whose ``max_new_tokens`` isn't set yet.

        In logits mode it has no stop ids, because an engine that stops early may return more rows
        of logits than tokens.
        """
        request = sequence.request
        return EngineCall(
            engine="draft",
            context=self._vocabulary.context(sequence),
            max_new_tokens=0,
            seed=proposal_seed(
                request.sampling.seed,
                len(sequence),
                keyed=self._engine.capabilities.keyed_randomness,
                use_draft_logits=request.use_draft_logits,
            ),
            stop_ids=() if request.use_draft_logits else self._vocabulary.stop_ids(sequence),
            ban_end_ids=sequence.min_tokens_left > 0,
        )

    def _give_up_logits(self) -> None:
        if self._branch_logits is not None:
            self._branch_logits.give_up()
        self._branch_logits = None

    @staticmethod
    def _steps_ahead(
        ahead: DraftAhead, call: EngineCall, num_branches: int, logits: BranchLogits
    ) -> StepsAhead:
        """Call the draft engine for branches, record the duration, and return the branches."""
        answer = yield call._replace(unread_logits=ahead.planner.next_unread_logits())
        logits.add(answer.logits)
        ahead.planner.timed_branches(answer, call.max_new_tokens, num_branches)
        return branches_of(len(call.context), call.draft.tokens, answer)

    def _awaited(self) -> Generator[AwaitAhead, Any, BranchesAhead | None]:
        """Return the branches for this round. Waits at most as long as a new draft would take."""
        if self._ahead is None or not self._drafts_ahead:
            return None
        self._drafts_ahead = False
        plan = self._plan_ahead()
        timeout = 0.0 if plan is None else self._ahead.planner.seconds(plan.on_miss)
        try:
            branches: BranchesAhead | None = yield AwaitAhead(timeout)
        except EngineRefused as error:
            self._ahead.refused = True
            self._health.refused(error)
            return None
        return branches

    def _branch(
        self, branches: BranchesAhead | None, sequence: Sequence, limit: int
    ) -> Draft | None:
        """Return the branch for exactly this context, cut to ``limit`` tokens, or None."""
        branch = None if branches is None else branches.after(sequence)
        if self._ahead is None or branches is None or branch is None:
            return None
        tokens = self._vocabulary.verifiable(sequence, branch.tokens, limit)
        if not len(tokens):
            return None
        return Draft(
            tokens,
            branches.logits,
            branch.logits_row,
            drafter=DRAFT_MODEL.name,
            num_branches=len(branches),
            drafted_ahead=True,
            seconds_saved=self._ahead.planner.seconds(len(tokens)),
        )

    def _plan_ahead(self) -> AheadPlan | None:
        """Return the plan for drafting ahead in this round, or None."""
        return None if self._ahead is None else self._ahead.plan(self._length.length_ahead)


def make(request: Request, context: DrafterContext) -> DraftModel:
    """Return the drafter for one request; raise ValueError if there is no draft engine."""
    settings = context.settings
    if settings.draft is None:
        raise ValueError("this drafter needs a draft engine")
    length: FixedLength | AutoLength
    if request.draft_len != AUTO:
        length = FixedLength(request.draft_len)
    elif lengths_decide_text(request, settings):
        length = FixedLength(min(SEEDED_LENGTH, request.max_draft_len))
    else:
        length = AutoLength(context.draft_planner)
    ahead = draft_ahead_of(request, settings, context.ahead_planner)
    vocabulary = (
        context.translator.translation()
        if context.translator
        else SharedVocabulary(settings.draft, settings.target)
    )
    return DraftModel(settings.draft, vocabulary, context.health, length, ahead)
