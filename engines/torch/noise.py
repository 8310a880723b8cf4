"""Randomness keyed by (seed, absolute position, purpose).

A counter-based generator (Philox, Salmon et al. 2011) makes the noise of a token a pure function of
its key: whatever call computes it, in whatever batch, on whatever device, it is the same.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from engines.request import Floats

_TINY = np.float32(np.finfo(np.float32).tiny)


class Purpose(IntEnum):
    """What the noise decides; two purposes never share any."""

    SAMPLE = 0  # propose a token, or sample it plainly
    ACCEPT = 1  # accept a draft token
    RESIDUAL = 2  # choose the correction token


def exponentials(seed: int, position: int, purpose: Purpose, width: int) -> Floats:
    """Return [width] draws from Exp(1); a wider draw begins with the same numbers.

    argmax(p / draws) is then a sample of p: the Gumbel trick.
    """
    # Drawn in double precision: in single, one draw in eight million is exactly 0 and would win.
    draws = _generator(seed, position, purpose).standard_exponential(width)
    return np.maximum(draws.astype(np.float32), _TINY)


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """Return one draw from [0, 1)."""
    return _generator(seed, position, purpose).random()


def _generator(seed: int, position: int, purpose: Purpose) -> np.random.Generator:
    key = np.array([seed, int(purpose)], np.uint64)
    counter = np.array([0, 0, position, 0], np.uint64)  # the draws advance the first word
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
