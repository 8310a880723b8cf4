"""Prompt lookup first; the draft model where nothing, or only a short n-gram, matched."""

from __future__ import annotations

from dataclasses import replace

from tandem.bls.drafters import draft_model, prompt_lookup
from tandem.bls.drafters.draft_model import DraftModel
from tandem.bls.drafters.drafter import Drafter, DrafterContext, Proposal, StepsAhead
from tandem.bls.drafters.prompt_lookup import PromptLookup
from tandem.bls.drafters.registry import LOOKUP_POOL, PROMPT_LOOKUP
from tandem.bls.effects import Draft, StepSeconds
from tandem.bls.errors import EngineCallError
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings


class Hybrid(Drafter):
    """Copies are free and often long; what is new the draft model guesses better."""

    def __init__(self, lookup: PromptLookup, model: DraftModel, settings: LoopSettings) -> None:
        self._prompt_lookup = lookup
        self._draft_model = model
        self._min_ngram_size = settings.hybrid_min_ngram_size

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Look up; ask the draft model, if it is well, where no match is long enough or pays."""
        if not self._draft_model.can_draft(sequence):
            return (yield from self._prompt_lookup.propose(sequence, limit))
        copied = self._prompt_lookup.look_up(sequence, limit, min_ngram_size=self._min_ngram_size)
        if wanted := len(copied) and self._draft_model.copy_length(copied):
            return replace(copied, tokens=copied.tokens[:wanted])
        draft = yield from self._draft_model.propose(sequence, limit)
        if len(draft) or len(copied) or not self._draft_model.allows_drafts():
            return draft
        # The target goes on alone, but while copies are worth being verified not for longer than
        # none has been found.
        return replace(draft, plain_tokens=min(draft.plain_tokens, self._longest_piece))

    def draft_ahead(self, sequence: Sequence, draft: Draft) -> StepsAhead | None:
        """Let the draft model draft on, also behind what was looked up."""
        return self._draft_model.draft_ahead(sequence, draft)

    @property
    def _longest_piece(self) -> int:
        """Tokens to decode alone after misses in a row: 1, 2, 3, 4, 8, 16, 32 and so on."""
        misses = self._prompt_lookup.misses
        return misses if misses <= 4 else 2 ** (misses - 2)

    def verified(self, draft: Draft, num_accepted: int, seconds: StepSeconds) -> None:
        """Pass on what became of drafts and of copies: the draft model competes with those."""
        if draft.drafter == LOOKUP_POOL:  # a copy like any other
            draft = replace(draft, drafter=PROMPT_LOOKUP.name)
        self._draft_model.verified(draft, num_accepted, seconds)

    def observe_plain_step(self, num_tokens: int, seconds: StepSeconds) -> None:
        """Pass on to the draft model what the target costs without drafts."""
        self._draft_model.observe_plain_step(num_tokens, seconds)

    def failed(self, error: EngineCallError) -> None:
        """Let the draft model rest."""
        self._draft_model.failed(error)

    def completed(self, sequence: Sequence) -> None:
        """Let the answer join its pool, and end what was drafted behind it."""
        self._prompt_lookup.completed(sequence)
        self._draft_model.completed(sequence)


def make(request: Request, context: DrafterContext) -> Hybrid:
    """Return the drafter of one request."""
    return Hybrid(
        prompt_lookup.make(request, context),
        draft_model.make(request, context),
        context.settings,
    )
