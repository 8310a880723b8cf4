"""The distributions that draft tokens were drawn from, in logits as a target wants to see them.

TensorRT-LLM turns `draft_logits` into probabilities as they are. So it is sent log-probabilities:
of what the draft engine drew its tokens from, in the width that the target's own logits have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.bls.request import Sampling, TokenIds

Logits = NDArray[np.float32]


def warped(logits: NDArray[Any], sampling: Sampling, vocab_size: int) -> Logits:
    """Return log-probabilities [1, n, vocab_size] of a draft's raw logits [1, n, width].

    Temperature, top-k and top-p follow each other as transformers' warpers do; what they exclude is
    -inf, and so is padding that the draft does not have. Padding that the target does not have is
    cut off: a draft ends before a token from there, so what it had is shared out among the others.
    """
    scores = np.array(logits, np.float32)
    if sampling.temperature != 1.0:
        # Counted from the best, so that none grows without bounds: inf - inf is not a number.
        scores -= scores.max(-1, keepdims=True)
        with np.errstate(over="ignore"):  # at the lowest temperatures the others become -inf
            scores /= max(np.float32(sampling.temperature), np.finfo(np.float32).tiny)
    if 0 < sampling.top_k < scores.shape[-1]:
        scores[scores < _kth_largest(scores, sampling.top_k)] = -np.inf
    if 0 < sampling.top_p < 1.0:
        scores[_tail(scores, sampling.top_p)] = -np.inf
    return _log_softmax(_at_width(scores, vocab_size))


def certain(tokens: TokenIds, vocab_size: int) -> Logits:
    """Return log-probabilities [1, n, vocab_size] of draft tokens [n] that had no alternative.

    Against these a target keeps a token with its own probability p and else draws one of the
    others by p: what it emits has the distribution p, wherever the tokens came from.
    """
    scores = np.full((1, len(tokens), vocab_size), -np.inf, np.float32)
    scores[0, np.arange(len(tokens)), tokens] = 0.0
    return scores


def _kth_largest(scores: Logits, k: int) -> Logits:
    """Return [..., 1]; tokens as likely as this one all stay."""
    return np.partition(scores, -k, axis=-1)[..., -k, np.newaxis]


def _tail(scores: Logits, top_p: float) -> NDArray[np.bool_]:
    """Mark the least likely tokens that together have 1 - top_p or less; never the likeliest."""
    order = np.argsort(scores, axis=-1, kind="stable")
    ranked = np.take_along_axis(scores, order, -1)
    removed = np.exp(_log_softmax(ranked)).cumsum(-1) <= np.float32(1 - top_p)
    removed[..., -1] = False
    marks = np.empty_like(removed)
    np.put_along_axis(marks, order, removed, -1)
    return marks


def _at_width(scores: Logits, vocab_size: int) -> Logits:
    missing = vocab_size - scores.shape[-1]
    if missing <= 0:
        return scores[..., :vocab_size]
    padding = np.full((*scores.shape[:-1], missing), -np.inf, np.float32)
    return np.concatenate([scores, padding], axis=-1)


def _log_softmax(scores: Logits) -> Logits:
    shifted = scores - scores.max(-1, keepdims=True)
    log_probabilities: Logits = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probabilities
