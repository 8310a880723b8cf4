"""The distribution that a token is drawn from, and the log-probabilities of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tandem.sampling.params import SamplingNumbers

Scores = TypeVar("Scores", NDArray[np.float32], NDArray[np.float64])
Places: TypeAlias = NDArray[np.intp]

_MIN_DIVISOR = float(np.finfo(np.float32).tiny)
# Columns of `highest`, at least. More leave fewer scores to rank, but must be ranked themselves.
_COLUMNS = 1024


def probabilities(logits: Scores, sampling: SamplingNumbers) -> Scores:
    """Return the probabilities [n] after temperature, top-k, top-p and min-p, as in transformers.

    logits: [n]. Tokens that tie with the last kept token are kept too. If a logit is NaN or inf,
    all kept probabilities are NaN.
    """
    ids = None
    if 0 < sampling.top_k < len(logits):
        ids = highest(logits, sampling.top_k)
    kept: Scores = logits if ids is None else logits[ids]
    # At very low temperatures, all weights but the best become 0.
    with np.errstate(over="ignore", invalid="ignore"):
        weights: Scores = kept - kept.max()
        if sampling.temperature != 1:
            weights /= max(sampling.temperature, _MIN_DIVISOR)
        np.exp(weights, out=weights)  # the best weight is 1
        threshold = sampling.min_p
        if sampling.top_p < 1:
            threshold = max(_top_p_threshold(weights, sampling.top_p), threshold)
        if threshold:
            weights[weights < threshold] = 0
        weights /= weights.sum()
    if ids is None:
        return weights
    p: Scores = np.zeros_like(logits)
    p[ids] = weights
    return p


def _top_p_threshold(weights: Scores, top_p: float) -> float:
    """Return the lowest weight to keep if at most 1 - top_p of the probability may be excluded.

    Even all weights [n] together that are at most 1 / n of this don't exceed it. So they are
    excluded, and only the few others are sorted.
    """
    total = float(weights.sum())
    left_out = (1 - top_p) * total
    likely = weights > left_out / len(weights)
    likely[weights.argmax()] = True
    ranked = np.sort(weights[likely])
    sums = ranked.cumsum(dtype=np.float64)
    excluded = total - sums[-1] + sums[:-1] <= left_out
    return float(ranked[np.count_nonzero(excluded)])


def fit_width(p: Scores, vocab_size: int) -> Scores:
    """Fit a draft's probabilities [..., n] to the target's vocabulary, whose padding may differ.

    Both vocabularies contain the drawn tokens. The probability of additional padding is spread over
    the other tokens.
    """
    missing = vocab_size - p.shape[-1]
    if not missing:
        return p
    fitted: Scores = np.zeros((*p.shape[:-1], vocab_size), p.dtype)
    fitted[..., : p.shape[-1]] = p[..., :vocab_size]
    if missing < 0:
        fitted /= fitted.sum(-1, keepdims=True)
    return fitted


def log_probs(logits: Scores, ids: Sequence[int] | Places) -> Scores:
    """Return the log-softmax of logits [n] at the ids [k]."""
    with np.errstate(invalid="ignore"):
        best = logits.max()
        found: Scores = logits[ids] - best - np.log(np.exp(logits - best).sum())
    return found


def likeliest(scores: Scores, count: int) -> Places:
    """Return the indices of the `count` highest scores [n], best first."""
    ids = highest(scores, count)
    ranked: Places = ids[np.argsort(-scores[ids], kind="stable")[:count]]
    return ranked


def highest(scores: Scores, count: int) -> Places:
    """Return the indices of the `count` highest scores [n], and of all that tie with the last one.

    They are in ascending order. The best scores of a few columns are a lower bound, so that only
    the few scores above it are ranked.
    """
    count = min(count, len(scores))
    columns = max(_COLUMNS, 8 * count)
    ids = np.arange(len(scores))
    if 2 * columns <= len(scores):
        best = scores[: len(scores) // columns * columns].reshape(-1, columns).max(0)
        ids = np.flatnonzero(~(scores < np.partition(best, -count)[-count]))
    ranked = scores[ids]
    kept: Places = ids[~(ranked < np.partition(ranked, -count)[-count])]
    return kept
