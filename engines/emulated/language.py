"""The synthetic language: the next token after a text, by the target and by the draft's guess.

Hashes of (text, position) decide everything, so it is the same in every process and call. After
each text the target has `CANDIDATES` possible tokens. With probability alpha the draft has exactly
the target's row. Otherwise its row has as many other tokens, so the two have none in common. A
draft token is therefore accepted with probability alpha however it is verified: greedily, by ids if
both draw with the same noise (all tokens of the rows are the same, or none), and by probabilities
(sum(min(p, q)) is 1 or 0).

If the draft doesn't have the target's row, it has alternatives: a list of guesses in addition to
its row, without probabilities. The target's token is among the next F of them with probability
1 - (F + 1)^-r, at any temperature.

The best token of a row has probability alpha. So the draft gives its guess exactly the probability
of being right, which `draft_stop_probability` relies on.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.engines.emulated.row import Row
from tandem.engines.emulated.settings import CANDIDATES, EmulatedSettings
from tandem.engines.noise import mixed
from tandem.engines.request import Ids

# Salts: each decision has its own hash.
_KIND, _END, _RANK = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_FAR = 20.0  # the logarithm of a rank that no vocabulary has
_RANKS = np.arange(CANDIDATES, dtype=np.int32)


class Text(NamedTuple):
    """As much of a text as decides what follows it: a CRC-32 of its ids, their number, its kind."""

    digest: int
    length: int
    easy: bool


class Language:
    """What one engine predicts after a text; `end_id` may end it."""

    def __init__(self, settings: EmulatedSettings) -> None:
        self._settings = settings
        self._low = settings.low_id
        self._words = settings.high_id - settings.low_id
        self.end_id = settings.end_id
        self.vocab_size = settings.vocab_size
        self._drafting = settings.role == "draft"
        hard = settings.alpha if settings.hard_alpha is None else settings.hard_alpha
        self._alpha = (hard, settings.alpha)  # by Text.easy
        self._shapes = tuple(_shape(alpha) for alpha in self._alpha)

    def read(self, ids: Ids) -> Text:
        digest = zlib.crc32(ids.astype("<i4").tobytes())
        return Text(digest, len(ids), self._kind_after(ids))

    def extend(self, text: Text, token: int) -> Text:
        digest = zlib.crc32(token.to_bytes(4, "little"), text.digest)
        length = text.length + 1
        return Text(digest, length, self._next_kind(text.easy, token, length))

    def best(self, text: Text, *, may_end: bool) -> int:
        if may_end and self._ends(text):
            assert self.end_id is not None
            return self.end_id
        return self._low + self._first(text) % self._words

    def ranked(self, text: Text, rank: int) -> int:
        """Return the next token with this rank, 0 being the most likely one."""
        if not rank:
            return self.best(text, may_end=True)
        return self._low + (self._first(text) + rank) % self._words

    def shape(self, text: Text) -> NDArray[np.float64]:
        """Return the probabilities [CANDIDATES] of the next tokens, by rank."""
        return self._shapes[text.easy]

    def row(self, text: Text, *, may_end: bool) -> Row:
        tokens = self._candidates(text)
        tokens[0] = self.best(text, may_end=may_end)
        return Row(tokens, self._shapes[text.easy])

    def row_among(self, text: Text, allowed: Ids) -> Row:
        """Return the row of a position where none of the language's own tokens is allowed.

        allowed: [n] ids. A subset of them gets the number and probabilities of the usual
        candidates.
        """
        ranks = _RANKS[: len(allowed)]
        p = self._shapes[text.easy][: len(ranks)]
        return Row(allowed[(self._first(text) + ranks) % len(allowed)], p / p.sum())

    def alternatives(self, text: Text, first: int, truth: int) -> Iterator[int]:
        """Yield a draft's guesses: its `first`, then more, with the target's own among them.

        truth: the target's token. If it equals `first`, the rest of the row follows, because the
        target may draw another token of it.
        """
        yield first
        rank, row = self._rank(text), []
        if truth == first:
            rank, row = 0, self._candidates(text).tolist()
        start = mixed(text.digest << 32 | text.length) % self._words + 2 * CANDIDATES
        others = (self._low + (start + i) % self._words for i in range(self._words))
        said = {first, truth, *row}
        fillers = (token for token in others if token not in said)
        for place, filler in enumerate(chain((t for t in row if t != first), fillers), 1):
            if place == rank:
                yield truth
            yield filler

    def _rank(self, text: Text) -> int:
        """Return the rank, from 1, of the target's token among the alternatives (0: missing)."""
        u = _uniform(text.digest << 32 | text.length, _RANK)
        exponent = self._settings.alternatives_exponent
        # The rank is at most F if 1 - u < 1 - (F + 1)^-r.
        power = -math.log(1 - u) / exponent if exponent else math.inf
        return int(math.exp(power)) if power < _FAR else 0

    def _candidates(self, text: Text) -> Ids:
        """Return the tokens that may follow, except the end: [CANDIDATES], most likely first."""
        return self._low + (self._first(text) + _RANKS) % self._words

    def _first(self, text: Text) -> int:
        """Return the best candidate, counted from `low_id`; the ids after it are the others."""
        bits = mixed(text.digest << 32 | text.length)
        first = bits % self._words
        return first if self._knows(text, bits) else first + CANDIDATES

    def _knows(self, text: Text, bits: int) -> bool:
        """Whether this engine has the target's row; decided by the upper half of the bits."""
        return not self._drafting or (bits >> 32) < self._alpha[text.easy] * 2**32

    def _ends(self, text: Text) -> bool:
        mean = self._settings.mean_answer_len
        if not mean or _uniform(text.digest << 32 | text.length, _END) * mean >= 1:
            return False
        return self._knows(text, mixed(text.digest << 32 | text.length))

    def _next_kind(self, easy: bool, token: int, length: int) -> bool:
        """Whether the position after `token`, the text's `length`-th, is easy."""
        if self._settings.hard_alpha is None:
            return True
        u = _uniform(token << 32 | length, _KIND)
        return u < (self._settings.stay_easy if easy else 1 - self._settings.stay_hard)

    def _kind_after(self, ids: Ids) -> bool:
        """Whether the position after ids [n] is easy.

        One number a position drives the chain whatever its kind was before. So as soon as both
        kinds lead to the same one, nothing before that position matters: look back just that far.
        """
        if self._settings.hard_alpha is None:
            return True
        easy, start = True, len(ids)
        for length in range(len(ids), 0, -1):
            token = int(ids[length - 1])
            easy = self._next_kind(True, token, length)
            start = length
            if easy == self._next_kind(False, token, length):
                break
        for length in range(start + 1, len(ids) + 1):
            easy = self._next_kind(easy, int(ids[length - 1]), length)
        return easy


def _shape(alpha: float) -> NDArray[np.float64]:
    """Probabilities [CANDIDATES]: alpha, then an even decline.

    At least twice an equal share, so that the best token is the best, and less than 1, so that the
    others can follow if it is banned.
    """
    best = min(max(alpha, 2 / CANDIDATES), 0.9999)
    decline = np.arange(CANDIDATES - 1, 0, -1, dtype=np.float64)
    return np.concatenate(([best], (1 - best) * decline / decline.sum()))


def _uniform(key: int, question: int) -> float:
    return mixed(key ^ question) / 2**64
