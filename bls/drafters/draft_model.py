"""Proposes tokens that a small draft model generates."""

from __future__ import annotations

from typing import Protocol

from tandem.bls.ahead import DraftAhead, make_draft_ahead
from tandem.bls.draft_length import AutoLength, FixedLength, fixed_length
from tandem.bls.drafters.drafter import Drafter, DrafterContext, DrafterHealth
from tandem.bls.drafters.registry import DRAFT_MODEL
from tandem.bls.errors import EngineCallError, RejectedByEngine
from tandem.bls.ports import (
    NO_DRAFT,
    NO_TOKENS,
    Draft,
    EngineCall,
    Engines,
)
from tandem.bls.request import Request, TokenIds
from tandem.bls.seeds import proposal_seed
from tandem.bls.sequence import Sequence
from tandem.bls.settings import EngineSettings


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

    def context(self, sequence: Sequence) -> TokenIds:
        """Return the context, or no tokens if the draft engine lacks one of its ids."""
        context = sequence.context
        lacks_ids = self._draft_size < self._target_size and (context >= self._draft_size).any()
        return NO_TOKENS if lacks_ids else context

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
    """Proposes tokens from a draft model (Leviathan et al., arXiv:2211.17192).

    length: chooses the lengths of drafts, and of `Hybrid`'s matches.
    """

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
        self.length = length
        self._ahead = ahead
        self._can_serve = True  # False after the draft engine rejected a call of this request

    def can_draft(self, sequence: Sequence) -> bool:
        """Return whether the draft engine is healthy and has room for the context and one token."""
        if not (self._can_serve and self._health.available):
            return False
        return 0 < len(self._vocabulary.context(sequence)) < self._engine.max_seq_len

    def failed(self, error: EngineCallError) -> None:
        """Pause the draft model or, if it rejected the call, stop drafting for this request."""
        if isinstance(error, RejectedByEngine):
            self._can_serve = False
            self._health.rejected(error)
        else:
            self._health.failed(error)

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:
        """Return a branch that was drafted ahead, or call the draft engine.

        The call has stop ids instead of an end id. Engines keep a stop id in the result but drop an
        end id, and the target couldn't verify a dropped token.
        """
        longest = min(limit, self._engine.max_seq_len - len(self._vocabulary.context(sequence)))
        branch = self._branch(sequence, longest, engines)
        if len(branch):
            return branch
        plan = self.length.plan(longest)
        if not plan.num_tokens:
            return Draft(plain_tokens=plan.plain_tokens)
        call = self._call(sequence)._replace(
            max_new_tokens=plan.num_tokens,
            wants_log_probs=plan.wants_log_probs,
            stop_probability=plan.stop_probability,
        )
        result = engines.call(call)
        if sequence.request.use_draft_logits and result.draft_logits is None:
            raise RejectedByEngine(
                self._engine.model, "generation_logits are missing from its response"
            )
        return Draft(
            self._vocabulary.verifiable(sequence, result.tokens, limit),
            result.draft_logits,
            drafter=DRAFT_MODEL.name,
            plain_tokens=plan.num_tokens,  # used if no drafted token is verifiable
            plan=plan,
            result=result,
            num_branches=branch.num_branches,
        )

    def _branch(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:
        """Return the branch for this context, or an empty draft."""
        if self._ahead is None:
            return NO_DRAFT
        try:
            return self._ahead.branch(
                sequence,
                lambda drafted: self._vocabulary.verifiable(sequence, drafted, limit),
                engines,
            )
        except RejectedByEngine as error:
            self._health.rejected(error, "drafting ahead")
            self._ahead = None  # the engine would reject further calls too
            return NO_DRAFT

    def draft_ahead(self, sequence: Sequence, draft: Draft, engines: Engines) -> bool:
        """Draft branches for the likely outcomes of verifying ``draft``.

        Any drafter may have proposed it, such as prompt lookup.
        """
        if self._ahead is None:
            return False
        plan = self._ahead.plan(self.length.length_ahead)
        if plan is None or not self.can_draft(sequence) or not self.length.allows_drafts():
            return False
        if (draft.tokens >= self._engine.vocab_size).any():
            return False
        room = self._engine.max_seq_len - len(sequence)
        call = self._call(sequence)
        return self._ahead.start(sequence, draft, plan, call, room=room, engines=engines)

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        if self._ahead is not None:
            self._ahead.verified(draft, num_accepted, seconds)
        self.length.verified(draft, num_accepted, seconds)

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        self.length.observe_plain_call(num_tokens, seconds)

    def completed(self, sequence: Sequence) -> None:  # noqa: ARG002
        if self._ahead is not None:
            self._ahead.give_up()

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
            wants_logits=request.use_draft_logits,
        )


def make(request: Request, context: DrafterContext) -> DraftModel:
    """Return the drafter for one request; raise ValueError if there is no draft engine."""
    settings = context.settings
    if settings.draft is None:
        raise ValueError("this drafter needs a draft engine")
    length = fixed_length(request, settings) or AutoLength(context.draft_planner)
    ahead = make_draft_ahead(request, settings, context.ahead_planner)
    vocabulary = (
        context.translator.translation()
        if context.translator
        else SharedVocabulary(settings.draft, settings.target)
    )
    return DraftModel(settings.draft, vocabulary, context.health, length, ahead)
