"""The distributions that draft tokens were drawn from, in logits as a target wants to see them.

TensorRT-LLM turns `draft_logits` into probabilities as they are. So it is sent log-probabilities:
of what the draft engine drew its tokens from, in the width that the target's own logits have.
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
    """Return log-probabilities [1, n, vocab_size] of a draft's raw logits [1, n, width].

    What is never drawn is -inf, and so is padding that the draft does not have. Padding that the
    target does not have is cut off: a draft ends before a token from there, so what it had is
    shared out among the others.
    """
    scores = warp(np.asarray(logits, np.float32), sampling)
    missing = vocab_size - scores.shape[-1]
    if missing > 0:
        scores = np.pad(scores, ((0, 0), (0, 0), (0, missing)), constant_values=-np.inf)
    return log_softmax(scores[..., :vocab_size])


def certain(tokens: TokenIds, vocab_size: int) -> Logits:
    """Return log-probabilities [1, n, vocab_size] of draft tokens [n] that had no alternative.

    Against these a target keeps a token with its own probability p and else draws one of the
    others by p: what it emits has the distribution p, wherever the tokens came from.
    """
    scores = np.full((1, len(tokens), vocab_size), -np.inf, np.float32)
    scores[0, np.arange(len(tokens)), tokens] = 0.0
    return scores
