"""Choose the tokens of one call from the language's rows."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tandem.engines.constraints import Bans, TokenMasks
from tandem.engines.emulated.language import Language, Row, Text, read_row
from tandem.engines.emulated.settings import CANDIDATES
from tandem.engines.engine import NO_IDS, EngineRequest, Ids
from tandem.engines.errors import RequestError
from tandem.engines.noise import Purpose, hash_key, uniform
from tandem.sampling.acceptance import accepts, verify_ids

_RANKS: Ids = np.arange(CANDIDATES, dtype=np.int32)


class Token(NamedTuple):
    """A token of an answer.

    probability: the model's own, before any processing. row: the row that the token was chosen
    from, after bans and masks but before temperature, top-k and top-p; None if the request doesn't
    need it.
    """

    id: int
    probability: float
    row: Row | None


class EmulatedSampler:
    """Chooses a call's tokens one by one."""

    def __init__(self, request: EngineRequest, language: Language) -> None:
        sampling = request.sampling
        self._request = request
        self._sampling = sampling
        self._language = language
        self.vocab_size = language.vocab_size
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.text: Text = language.read(request.input_ids)
        self._bans = Bans(request, language.vocab_size)
        self._masks = TokenMasks(request, language.vocab_size)
        self._history: Ids | None = None  # the ids of `text`, with space for the answer
        if self._bans:
            max_tokens = request.max_new + int(request.branch_output_len.max(initial=0))
            self._history = np.concatenate((request.input_ids, np.zeros(max_tokens, np.int32)))
        self._simple = not (self._bans or self._masks)
        self._wants_rows = request.return_generation_logits
        self._ranks: dict[tuple[int, bool], int] = {}  # ranks drawn, by position and kind of text

    def next(self) -> Token:
        token = self._choose()
        self.append(token.id)
        return token

    def peek(self) -> int:
        """Return the next token without appending it."""
        return self._choose().id

    def allows(self, token: int) -> bool:
        return not (self._banned_ids() == token).any()

    def after(self, token: int) -> EmulatedSampler:
        """Return a sampler for the text with one more token. This one doesn't change."""
        later = copy.copy(self)
        if self._history is not None:
            later._history = self._history.copy()
        later.append(token)
        return later

    def append(self, token: int) -> None:
        if self._history is not None:
            self._history[self.text.length] = token
        self.text = self._language.extend(self.text, token)

    def verify(self) -> list[Token]:
        if self._sampling.greedy or self._request.draft_logits is None:
            return self._verify_ids()
        return self._verify_probabilities()

    def _verify_ids(self) -> list[Token]:
        tokens: list[Token] = []

        def own_ids() -> Iterator[int]:
            while True:  # only as far as the drafts are accepted
                tokens.append(self.next())
                yield tokens[-1].id

        verify_ids(self._request.draft_ids.tolist(), own_ids())
        return tokens

    def _verify_probabilities(self) -> list[Token]:
        assert self._request.draft_logits is not None
        emitted = []
        for draft, logits in zip(
            self._request.draft_ids.tolist(), self._request.draft_logits, strict=True
        ):
            own, allowed = self._rows()
            p = allowed.apply_sampling(self._sampling)
            q = read_row(logits).apply_sampling(self._sampling)
            u = self._request.draft_acceptance_threshold  # a constant makes the result lossy
            if u is None:
                u = uniform(self._seed, self.text.length, Purpose.ACCEPT)
            accepted = accepts(p.probability(draft), q.probability(draft), u)
            token = draft if accepted else self._draw(p.minus(q), Purpose.RESIDUAL)
            emitted.append(self._token(token, own, allowed))
            self.append(token)
            if not accepted:
                return emitted
        return [*emitted, self.next()]

    def _choose(self) -> Token:
        if self._simple:
            rank = 0 if self._sampling.greedy else self._rank()
            probability = float(self._language.shape(self.text)[rank])
            row = self._language.row(self.text, may_end=True) if self._wants_rows else None
            return Token(self._language.token_at_rank(self.text, rank), probability, row)
        own, allowed = self._rows()
        if self._sampling.greedy:
            return self._token(int(allowed.tokens[0]), own, allowed)
        token = self._draw(allowed.apply_sampling(self._sampling), Purpose.SAMPLE)
        return self._token(token, own, allowed)

    def _rank(self) -> int:
        """Draw the rank of the next token once, for all branches with the same length and kind."""
        key = self.text.length, self.text.easy
        if key not in self._ranks:
            row = Row(_RANKS, self._language.shape(self.text)).apply_sampling(self._sampling)
            self._ranks[key] = self._draw(row, Purpose.SAMPLE)
        return self._ranks[key]

    def _rows(self) -> tuple[Row, Row]:
        """Return the language's row, and the part of it that the request allows."""
        if self._simple:
            own = self._language.row(self.text, may_end=True)
            return own, own
        banned = self._banned_ids()
        if self._masks:
            return self._masked_rows(banned)
        own = self._language.row(self.text, may_end=self._may_end(banned))
        allowed = own.without(banned)
        if not len(allowed.tokens):
            raise RequestError(
                "bad_words_list bans every token of the emulated language", "bad_words_list"
            )
        return own, allowed

    def _masked_rows(self, banned: Ids) -> tuple[Row, Row]:
        """Return the language's row, and the part of it that the mask allows.

        The language has few tokens but must be able to follow any grammar. If the mask allows none
        of its candidates, the language picks others from the allowed ids.
        """
        may_come = self._masks.allowed_mask(self.text.length)
        may_come[banned] = False
        end_id = self._language.end_id
        may_end = self._may_end(banned) and (end_id is None or bool(may_come[end_id]))
        own = self._language.row(self.text, may_end=may_end)
        allowed = own.among(may_come)
        if not len(allowed.tokens):
            others = np.flatnonzero(may_come).astype(np.int32)
            if not len(others):
                raise RequestError(
                    "token_masks, bad_words_list and end_id together ban every token", "token_masks"
                )
            allowed = self._language.row_among(self.text, others)
        return own, allowed

    def _banned_ids(self) -> Ids:
        if self._history is None:
            return NO_IDS
        return self._bans.after(self._history[: self.text.length])

    def _token(self, token: int, own: Row, allowed: Row) -> Token:
        return Token(token, own.probability(token), allowed if self._wants_rows else None)

    def _draw(self, row: Row, purpose: Purpose) -> int:
        return row.draw(hash_key(self._seed, self.text.length, purpose))

    def _may_end(self, banned: Ids) -> bool:
        """Return whether the text may end at this position."""
        said = self.text.length - len(self._request.input_ids)
        return said >= self._sampling.min_tokens and not (banned == self._language.end_id).any()
