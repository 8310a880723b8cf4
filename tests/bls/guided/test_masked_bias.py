"""A mask as a bias: what it forbids cannot be drawn, and the rest keeps its own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.bls.guided.masked_bias import masked_bias

WIDTH = 70  # more than two words, and part of a third


@given(st.sets(st.integers(0, WIDTH - 1)), st.booleans())
def test_only_what_a_mask_lets_come_keeps_a_bias(allowed, biased):
    mask = np.zeros(-(-WIDTH // 32), np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << token % 32)
    bias = np.arange(WIDTH, dtype=np.float32) if biased else None
    made = masked_bias(bias, mask.view(np.int32), WIDTH)
    assert made.dtype == np.float32
    expected = [float(i) * biased if i in allowed else -np.inf for i in range(WIDTH)]
    assert made.tolist() == expected
