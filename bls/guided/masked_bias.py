"""A mask of tokens as a bias, for an engine that takes no masks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bias = NDArray[np.float32]


def masked_bias(bias: Bias | None, mask: NDArray[np.int32], vocab_size: int) -> Bias:
    """Return the bias [vocab_size] with minus infinity for all tokens that a mask forbids.

    mask: [words], bit (id % 32) of word (id // 32).
    """
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size)
    base = np.zeros(vocab_size, np.float32) if bias is None else bias
    return np.where(allowed, base, np.float32(-np.inf)).astype(np.float32)
