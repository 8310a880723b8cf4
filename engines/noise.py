"""Randomness keyed by (seed, absolute position, purpose).

A counter-based generator (Philox, Salmon et al. 2011) makes the noise of a token a pure function of
its key: whatever call computes it, in whatever batch, on whatever device, it is the same.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.request import Floats

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
    return _single(_generator(seed, position, purpose).standard_exponential(width))


def exponentials_at(
    seed: int, position: int, purpose: Purpose, indices: NDArray[np.int64]
) -> Floats:
    """Return what `exponentials` has at these indices [n], which rise."""
    draws = _generator(seed, position, purpose).standard_exponential(int(indices[-1]) + 1)
    return _single(draws[indices])


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    """Return one draw from [0, 1)."""
    return _generator(seed, position, purpose).random()


class _Thread(threading.local):
    """A thread's generator, which is moved from key to key: making one costs four times as much."""

    def __init__(self) -> None:
        self.bits = np.random.Philox()
        self.generator = np.random.Generator(self.bits)
        self.key = np.zeros(2, np.uint64)
        self.counter = np.zeros(4, np.uint64)
        self.state: Any = {
            "bit_generator": "Philox",
            "state": {"key": self.key, "counter": self.counter},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,  # nothing is left of another key's numbers
            "has_uint32": 0,
            "uinteger": 0,
        }


_thread = _Thread()


def _generator(seed: int, position: int, purpose: Purpose) -> np.random.Generator:
    """Return this thread's generator, about to draw that key's numbers."""
    _thread.key[0], _thread.key[1] = seed, purpose
    _thread.counter[2] = position  # the draws advance the first word
    _thread.bits.state = _thread.state
    return _thread.generator


def _single(draws: NDArray[np.float64]) -> Floats:
    """In single precision one draw in eight million would be exactly 0, and win."""
    return np.maximum(draws.astype(np.float32), _TINY)
