"""Drafts by a small model."""

from __future__ import annotations

from typing import Protocol

from bls.draft_length import DraftLength
from bls.drafters.drafter import Drafter, Proposal
from bls.effects import Draft, EngineCall
from bls.errors import EngineError
from bls.request import TokenIds
from bls.seeds import proposal_seed
from bls.sequence import Sequence
from bls.settings import LoopSettings


class DrafterHealth(Protocol):
    """Remembers over all requests whether the draft model answers."""

    @property
    def available(self) -> bool:
        """Whether the draft model may be asked."""

    def failed(self, error: EngineError) -> None:
        """Let the draft model rest."""


class DraftModel(Drafter):
    """A small model that shares the target's vocabulary (Leviathan et al., arXiv:2211.17192)."""

    def __init__(self, settings: LoopSettings, health: DrafterHealth, length: DraftLength) -> None:
        self._settings = settings
        self._health = health
        self._length = length

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether the draft engine is well and has room for one more token."""
        return self._health.available and self._room(sequence) > 0

    def failed(self, error: EngineError) -> None:
        """Let the draft model rest."""
        self._health.failed(error)

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Ask the draft engine for the next tokens, as many as are worth it now.

        It is given no end id: an engine that stops there drops the token, and the target could not
        confirm it. What was drafted behind an end of sequence is cut instead; not in logits mode,
        where a token that was drawn is never dropped (the target's end of sequence ends it).
        """
        request = sequence.request
        plan = self._length.plan(min(limit, self._room(sequence)))
        if not plan.num_tokens:
            return Draft(plain_tokens=plan.plain_tokens)
        answer = yield EngineCall(
            engine="draft",
            context=sequence.context,
            max_new_tokens=plan.num_tokens,
            seed=proposal_seed(
                request.sampling.seed,
                len(sequence),
                keyed=self._settings.draft_keyed_randomness,
                use_draft_logits=request.use_draft_logits,
            ),
            ban_end_ids=sequence.tokens_owed > 0,
            wants_logits=request.use_draft_logits,
            wants_log_probs=plan.wants_log_probs,
            stop_probability=plan.stop_probability,
        )
        if request.use_draft_logits and answer.logits is None:
            raise EngineError(
                self._settings.draft_model or "", "its answer lacks generation_logits"
            )
        tokens, logits = self._within_vocabulary(answer.tokens), answer.logits
        if not request.use_draft_logits:
            tokens, logits = sequence.up_to_end(tokens), None
        return Draft(tokens, logits, drafter="draft_model", plan=plan, answer=answer)

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Let the next lengths follow from it."""
        self._length.verified(draft, num_accepted, seconds)

    def went_alone(self, num_tokens: int, seconds: float) -> None:
        """Let the next lengths follow from it."""
        self._length.went_alone(num_tokens, seconds)

    def _within_vocabulary(self, tokens: TokenIds) -> TokenIds:
        """``tokens`` up to the first from padding that the target lacks; it cannot look that up."""
        if self._settings.draft_vocab_size <= self._settings.vocab_size:
            return tokens
        unknown = (tokens >= self._settings.vocab_size).nonzero()[0]
        return tokens[: unknown[0]] if len(unknown) else tokens

    def _room(self, sequence: Sequence) -> int:
        return self._settings.draft_max_seq_len - len(sequence)
