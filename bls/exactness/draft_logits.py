"""Converts the distributions that draft tokens were drawn from into logits for the target.

TensorRT-LLM turns `draft_logits` into probabilities without warping them, that is, without applying
temperature, top-k and so on. So Tandem sends the warped log-probabilities that the draft engine
sampled from, padded or cut to the width of the target's logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.bls.request import TokenIds
from tandem.sampling.params import SamplingNumbers
from tandem.sampling.warping import log_softmax, warp

Logits = NDArray[np.float32]


def warped(logits: NDArray[Any], sampling: SamplingNumbers, vocab_size: int) -> Logits:
    """Return warped log-probabilities [1, n, vocab_size] of a draft's raw logits [1, n, width].

    Tokens that can't be sampled are -inf, and so is padding that exists only in the target. Padding
    that exists only in the draft is cut off, and its probability is spread over the other tokens,
    because a draft is cut before such a token.
    """
    scores = warp(np.asarray(logits, np.float32), sampling)
    missing = vocab_size - scores.shape[-1]
    if missing > 0:
        scores = np.pad(scores, ((0, 0), (0, 0), (0, missing)), constant_values=-np.inf)
    return log_softmax(scores[..., :vocab_size])


def certain(tokens: TokenIds, vocab_size: int) -> Logits:
    """Return log-probabilities [1, n, vocab_size] that give each draft token [n] probability 1.

    The target accepts such a token with its own probability p, and otherwise samples another token
    from p. So the emitted tokens have distribution p, no matter how they were drafted.
    """
    scores = np.full((1, len(tokens), vocab_size), -np.inf, np.float32)
    scores[0, np.arange(len(tokens)), tokens] = 0.0
    return scores
