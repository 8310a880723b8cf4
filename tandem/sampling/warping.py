"""Temperature, top-k, top-p and min-p on numpy arrays.

`engines.stepping.sampling` does the same with tensors.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tandem.sampling.params import SamplingNumbers

Scores = TypeVar("Scores", NDArray[np.float32], NDArray[np.float64])

_MIN_DIVISOR = float(np.finfo(np.float32).tiny)


def warp(scores: Scores, sampling: SamplingNumbers) -> Scores:
    """Return the logits [..., n] to sample from; -inf for excluded tokens.

    scores: logits [..., n], which aren't modified. Tokens that tie with the last kept token are
    kept too.
    """
    real = scores.dtype.type
    if sampling.temperature != 1.0:
        # Make scores relative to the maximum, so that none becomes inf: inf - inf is NaN.
        with np.errstate(over="ignore"):  # at very low temperatures the other scores become -inf
            scores = scores - scores.max(-1, keepdims=True)
            scores /= real(max(sampling.temperature, _MIN_DIVISOR))
    if 0 < sampling.top_k < scores.shape[-1]:
        ranked = np.partition(scores, -sampling.top_k, axis=-1)
        scores = _mask_below(ranked[..., -sampling.top_k, np.newaxis], scores)
    if sampling.top_p < 1:
        ranked = np.sort(scores, axis=-1)
        weights = np.exp(ranked - ranked[..., -1:]).cumsum(-1)
        # Exclude the least likely tokens with a total probability of at most 1 - top_p, but never
        # the most likely token.
        ranked[..., :-1][weights[..., :-1] <= real(1 - sampling.top_p) * weights[..., -1:]] = np.inf
        scores = _mask_below(ranked.min(-1, keepdims=True), scores)
    if sampling.min_p > 0:
        scores = _mask_below(scores.max(-1, keepdims=True) + real(np.log(sampling.min_p)), scores)
    return scores


def log_softmax(scores: Scores) -> Scores:
    """Return the log-probabilities [..., n] of logits [..., n]."""
    shifted: Scores = scores - scores.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def _mask_below(threshold: Scores, scores: Scores) -> Scores:
    kept: Scores = np.where(scores < threshold, scores.dtype.type(-np.inf), scores)
    return kept
