"""Distributions of the next token that are zero for nearly all tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.engines.request import Floats, Ids
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import warp

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
        scores = warp(np.log(self.probabilities), sampling)
        kept = scores > -np.inf
        return _normalize(self.tokens[kept], np.exp(scores[kept] - scores[0]))

    def draw(self, noise: Floats) -> int:
        return int(self.tokens[np.argmax(self.probabilities / noise[: len(self.tokens)])])

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
