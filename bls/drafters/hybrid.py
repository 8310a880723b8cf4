"""Tries prompt lookup first, then the draft model if the longest match is too short.

With `auto`, drafters without a draft model are hybrids too: without a match that pays, the target
decodes alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tandem.bls.draft_length import AutoLength, fixed_length
from tandem.bls.drafters import draft_model, prompt_lookup
from tandem.bls.drafters.draft_model import DraftModel
from tandem.bls.drafters.drafter import Drafter, DrafterContext, NoDrafter
from tandem.bls.drafters.prompt_lookup import PromptLookup
from tandem.bls.errors import EngineCallError
from tandem.bls.ports import NO_DRAFT, Draft, Engines
from tandem.bls.request import Request
from tandem.bls.sequence import Sequence


class NoDraftModel(NoDrafter):
    """Stands in for the draft model. length: chooses the lengths of matches."""

    def __init__(self, length: AutoLength) -> None:
        self.length = length

    def can_draft(self, sequence: Sequence) -> bool:  # noqa: ARG002
        return True

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:  # noqa: ARG002
        return Draft(plain_tokens=self.length.plan(limit).plain_tokens)

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        self.length.verified(draft, num_accepted, seconds)

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        self.length.observe_plain_call(num_tokens, seconds)


class Hybrid(Drafter):
    """Matches, which need no draft call, and a draft model for text without a match.

    lookup: finds matches. best_match: the best that it can find. min_ngram_size: of a match, for
    which the draft model isn't asked.
    """

    def __init__(
        self,
        lookup: Drafter,
        model: DraftModel | NoDraftModel,
        best_match: Draft,
        min_ngram_size: int = 0,
    ) -> None:
        self._lookup = lookup
        self._draft_model = model
        self._best_match = best_match
        self._min_ngram_size = min_ngram_size
        self._num_alone = 0  # tokens of shortened calls; accepted lookup tokens make it smaller
        self._unused, self._unused_at = NO_DRAFT, 0  # last match that wasn't used, its position
        self._shortened = False  # whether the last plain call was shorter than planned

    def can_draft(self, sequence: Sequence) -> bool:
        return self._lookup.can_draft(sequence)

    def propose(self, sequence: Sequence, limit: int, engines: Engines) -> Draft:
        """Propose a match, or call the draft model if no match is long enough to pay."""
        self._compare_unused(sequence)
        self._shortened = False
        match = self._lookup.propose(sequence, limit, engines)
        if match.result is not None or not self._draft_model.can_draft(sequence):
            return match
        if match.num_matching < self._min_ngram_size:
            match = NO_DRAFT
        if len(match):
            length = self._draft_model.length.lookup_length(match)
            if length:
                return replace(match, tokens=match.tokens[:length])
        self._unused, self._unused_at = match, len(sequence)
        draft = self._draft_model.propose(sequence, limit, engines)
        if len(draft) or not self._draft_model.length.allows_drafts():
            return draft
        if not self._draft_model.length.lookup_length(self._best_match):
            return draft  # not even the longest match would be used
        return replace(draft, plain_tokens=self._limit_plain(draft.plain_tokens))

    def _limit_plain(self, planned: int) -> int:
        """Limit the number of tokens that the target decodes alone.

        A match may be right soon, but each call costs as much as `call_overhead` tokens. The more
        tokens came without a match, the longer are the calls. Accepted tokens shorten them again.
        Twice the overhead is the best growth for recorded completions, edits and chats.
        """
        tokens = 1 + int(2 * self._draft_model.length.call_overhead * self._num_alone)
        self._shortened = tokens < planned
        if not self._shortened:
            return planned
        self._num_alone += tokens
        return tokens

    def _compare_unused(self, sequence: Sequence) -> None:
        """Report how many tokens of the last unused match the text has confirmed since then."""
        new = sequence.context[self._unused_at :][: len(self._unused)]
        match = replace(self._unused, tokens=self._unused.tokens[: len(new)])
        self._unused = NO_DRAFT
        if len(match):
            right = np.append(match.tokens == new, False)
            num_right = int(right.argmin())  # index of the first wrong token
            self._draft_model.length.observe_lookup(match, num_right)

    def draft_ahead(self, sequence: Sequence, draft: Draft, engines: Engines) -> bool:
        return self._draft_model.draft_ahead(sequence, draft, engines)

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Report drafts and matches to the draft model, which weighs its drafts against matches."""
        if draft.result is None and not draft.drafted_ahead:
            self._lookup.verified(draft, num_accepted, seconds)
            self._num_alone //= 1 + num_accepted
        self._draft_model.verified(draft, num_accepted, seconds)

    def observe_plain_call(self, num_tokens: int, seconds: float) -> None:
        """Report a plain call. A shortened one shows only what a call costs."""
        self._lookup.observe_plain_call(num_tokens, seconds)
        self._draft_model.length.observe_call_time(num_tokens, seconds)
        if not self._shortened:
            self._draft_model.observe_plain_call(num_tokens, seconds)

    def failed(self, error: EngineCallError) -> None:
        self._lookup.failed(error)
        self._draft_model.failed(error)

    def completed(self, sequence: Sequence) -> None:
        self._lookup.completed(sequence)
        self._draft_model.completed(sequence)


def make(request: Request, context: DrafterContext) -> Hybrid:
    lookup = prompt_lookup.make(request, context)
    return Hybrid(
        lookup,
        draft_model.make(request, context),
        lookup.best_possible_draft,
        context.settings.hybrid_min_ngram_size,
    )


def without_draft_model(drafter: Drafter, request: Request, context: DrafterContext) -> Drafter:
    """Return a drafter that uses those drafts of ``drafter`` that pay, if the length is `auto`."""
    if fixed_length(request, context.settings):
        return drafter
    best = Draft(np.zeros(request.longest_draft, np.int32))
    if isinstance(drafter, PromptLookup):
        best = drafter.best_possible_draft
    planner = context.draft_planner.without_draft_model(request.drafter)
    return Hybrid(drafter, NoDraftModel(AutoLength(planner)), best)
