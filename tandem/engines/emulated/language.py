"""The synthetic language: defines the target's next token and the draft's guess after any text.

A row is a distribution of the next token that is zero for nearly all tokens.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.engines.emulated.settings import CANDIDATES, EmulatedSettings
from tandem.engines.engine import Floats, Ids
from tandem.engines.noise import draw, mix_bits
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import probabilities

FLOOR = -1e4  # logit of an impossible token: its exponential is 0, and it causes no NaN
_NEGLIGIBLE = 104.0  # e^-104 is 0 in single precision


@dataclass(frozen=True, eq=False)
class Row:
    """The tokens that may follow a text, most likely first, and their probabilities.

    tokens: [n], distinct. probabilities: [n], with sum 1; all other tokens have probability 0.
    """

    tokens: Ids
    probabilities: NDArray[np.float64]

    def probability(self, token: int) -> float:
        return float(self.probabilities[self.tokens == token].sum())

    def without(self, banned: Ids) -> Row:
        """Return the row without the banned tokens. The result may be empty."""
        kept = np.isin(self.tokens, banned, invert=True)
        return _normalize(self.tokens[kept], self.probabilities[kept])

    def among(self, allowed: NDArray[np.bool_]) -> Row:
        """Return the row limited to the tokens that `allowed` [vocab_size] allows; may be empty."""
        kept = allowed[self.tokens]
        return _normalize(self.tokens[kept], self.probabilities[kept])

    def apply_sampling(self, sampling: SamplingNumbers) -> Row:
        if sampling.temperature == 1 and not sampling.truncates:
            return self
        scores: NDArray[np.float64] = np.log(self.probabilities)
        p = probabilities(scores, sampling)
        return Row(self.tokens[p > 0], p[p > 0])

    def draw(self, key: int) -> int:
        return int(self.tokens[draw(self.probabilities, key)])

    def minus(self, other: Row) -> Row:
        """Return norm(max(0, self - other)), or self if the difference is 0 for all tokens."""
        taken = np.array([other.probability(token) for token in self.tokens.tolist()])
        left = np.maximum(self.probabilities - taken, 0)
        return Row(self.tokens, left / left.sum()) if left.any() else self


def read_row(logits: Floats) -> Row:
    """Return the distribution for logits [vocab_size].

    Tokens that are never drawn at temperatures up to 1 are omitted. Most logits come from an
    emulated draft, which has few candidates. Finding these takes a tenth of the time of a softmax.
    """
    best = logits.max()
    tokens = np.flatnonzero(logits > best - _NEGLIGIBLE)
    p = np.exp(logits[tokens].astype(np.float64) - best)
    order = np.argsort(-p, kind="stable")
    return _normalize(tokens[order].astype(np.int32), p[order])


def dense(rows: list[Row], vocab_size: int) -> Floats:
    logits = np.full((len(rows), vocab_size), FLOOR, np.float32)
    lines = np.repeat(np.arange(len(rows)), [len(row.tokens) for row in rows])
    tokens = np.concatenate([row.tokens for row in rows])
    probabilities = np.concatenate([row.probabilities for row in rows])
    live = probabilities > 0
    logits[lines[live], tokens[live]] = np.log(probabilities[live])
    return logits


def _normalize(tokens: Ids, weights: NDArray[np.float64]) -> Row:
    return Row(tokens, weights / weights.sum() if len(weights) else weights)


# Salts that give each decision its own hash.
_KIND, _END, _RANK = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_FAR = 20.0  # logarithm of a rank beyond any vocabulary
_RANKS = np.arange(CANDIDATES, dtype=np.int32)


class Text(NamedTuple):
    """The properties that determine how a text continues. digest: CRC-32 of its ids."""

    digest: int
    length: int
    easy: bool


class Language:
    """One engine's predictions after a text. `end_id`, if set, may end the text."""

    def __init__(self, settings: EmulatedSettings) -> None:
        self._settings = settings
        self._low = settings.low_id
        self._words = settings.high_id - settings.low_id
        self.end_id = settings.end_id
        self.vocab_size = settings.vocab_size
        self._drafting = settings.role == "draft"
        hard = settings.alpha if settings.hard_alpha is None else settings.hard_alpha
        self._alpha = (hard, settings.alpha)  # indexed by Text.easy
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

    def token_at_rank(self, text: Text, rank: int) -> int:
        """Return the next token with this rank; rank 0 is the most likely token."""
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
        """Return the row for a position at which none of the language's own tokens is allowed.

        allowed: [n] ids. The row contains a subset of them. It has the usual number of candidates,
        if there are enough, with the usual probabilities.
        """
        ranks = _RANKS[: len(allowed)]
        p = self._shapes[text.easy][: len(ranks)]
        return Row(allowed[(self._first(text) + ranks) % len(allowed)], p / p.sum())

    def alternatives(self, text: Text, first: int, truth: int) -> Iterator[int]:
        """Yield a draft's guesses: `first`, then alternatives that may include the target's token.

        truth: the target's token. If it equals `first`, the rest of the row follows, because the
        target may draw another token of the same row.
        """
        yield first
        rank, row = self._rank(text), []
        if truth == first:
            rank, row = 0, self._candidates(text).tolist()
        start = mix_bits(text.digest << 32 | text.length) % self._words + 2 * CANDIDATES
        others = (self._low + (start + i) % self._words for i in range(self._words))
        said = {first, truth, *row}
        fillers = (token for token in others if token not in said)
        for place, filler in enumerate(chain((t for t in row if t != first), fillers), 1):
            if place == rank:
                yield truth
            yield filler

    def _rank(self, text: Text) -> int:
        """Return the rank, from 1, of the target's token among the alternatives (0: absent)."""
        u = _uniform(text.digest << 32 | text.length, _RANK)
        exponent = self._settings.alternatives_exponent
        # The rank is at most F if 1 - u < 1 - (F + 1)^-r.
        power = -math.log(1 - u) / exponent if exponent else math.inf
        return int(math.exp(power)) if power < _FAR else 0

    def _candidates(self, text: Text) -> Ids:
        """Return the tokens that may follow, except `end_id`: [CANDIDATES], most likely first."""
        return self._low + (self._first(text) + _RANKS) % self._words

    def _first(self, text: Text) -> int:
        """Return the best candidate, relative to `low_id`. The next ids are the others."""
        bits = mix_bits(text.digest << 32 | text.length)
        first = bits % self._words
        return first if self._knows(text, bits) else first + CANDIDATES

    def _knows(self, text: Text, bits: int) -> bool:
        """Whether this engine has the target's row. The upper half of the bits decides."""
        return not self._drafting or (bits >> 32) < self._alpha[text.easy] * 2**32

    def _ends(self, text: Text) -> bool:
        mean = self._settings.mean_answer_len
        if not mean or _uniform(text.digest << 32 | text.length, _END) * mean >= 1:
            return False
        return self._knows(text, mix_bits(text.digest << 32 | text.length))

    def _next_kind(self, easy: bool, token: int, length: int) -> bool:
        """Whether the position after `token` is easy. length: the text's length with `token`."""
        if self._settings.hard_alpha is None:
            return True
        u = _uniform(token << 32 | length, _KIND)
        return u < (self._settings.stay_easy if easy else 1 - self._settings.stay_hard)

    def _kind_after(self, ids: Ids) -> bool:
        """Whether the position after ids [n] is easy.

        One random number per position drives the Markov chain from either state. Once both states
        lead to the same next state, earlier positions don't matter, so the search goes back only
        that far.
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
    """Return probabilities [CANDIDATES]: alpha for the best token, then a linear decline.

    The best token's probability is raised to twice an equal share, so that it stays the best. It is
    kept below 1, so that other tokens can follow if the best one is banned.
    """
    best = min(max(alpha, 2 / CANDIDATES), 0.9999)
    decline = np.arange(CANDIDATES - 1, 0, -1, dtype=np.float64)
    return np.concatenate(([best], (1 - best) * decline / decline.sum()))


def _uniform(key: int, question: int) -> float:
    return mix_bits(key ^ question) / 2**64
