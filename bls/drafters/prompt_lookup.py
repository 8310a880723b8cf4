"""Drafts copied from the context: what followed the same n-gram before."""

from __future__ import annotations

import numpy as np

from tandem.bls.drafter_registry import PROMPT_LOOKUP
from tandem.bls.drafters.drafter import Drafter, DrafterContext, Proposal
from tandem.bls.effects import Draft
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence
from tandem.bls.settings import LoopSettings
from tandem.lookup.index import NgramIndex

# Without a match the target goes on alone for as many tokens as there were misses in a row, up to
# so many: a call for one token each would pay a hop for every token of a text that repeats nothing.
MOST_PLAIN_TOKENS = 8


class PromptLookup(Drafter):
    """Prompt and answer feed one index, which belongs to this request alone.

    Source: Saxena, "Prompt Lookup Decoding", 2023; TensorRT-LLM's hyperparameters.
    """

    def __init__(self, request: Request, settings: LoopSettings) -> None:
        self._longest = request.prompt_lookup_num_tokens
        self._index = NgramIndex(
            request.max_matching_ngram_size,
            keep_all=settings.lookup_keeps_all,
            use_oldest=settings.lookup_uses_oldest,
        )
        self.misses = 0  # in a row

    def propose(self, sequence: Sequence, limit: int) -> Proposal:
        """Look the context's last tokens up."""
        return self.look_up(sequence, limit)
        yield  # a generator, as every drafter is

    def look_up(self, sequence: Sequence, limit: int, *, min_ngram_size: int = 1) -> Draft:
        """Return what followed the longest n-gram that matches, if it is long enough."""
        self._index.extend(sequence.context[len(self._index) :].tolist())
        match = self._index.lookup(min(limit, self._longest))
        if match is None or match.ngram_size < min_ngram_size:
            self.misses += 1
            return Draft(plain_tokens=min(self.misses, MOST_PLAIN_TOKENS))
        self.misses = 0
        tokens = sequence.up_to_end(np.array(match.tokens, np.int32))
        return Draft(tokens, drafter=PROMPT_LOOKUP.name, num_matching=match.ngram_size)


def make(request: Request, context: DrafterContext) -> PromptLookup:
    """Return the drafter of one request."""
    return PromptLookup(request, context.settings)
