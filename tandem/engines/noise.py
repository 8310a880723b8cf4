"""Randomness keyed by (seed, absolute position, purpose).

A token's noise is a pure function of its key and its index. So it is the same in every call and in
every batch, and noise that isn't needed isn't computed. The function is SplitMix64 (Steele, Lea,
Flood 2014). Its n-th output mixes the n-th multiple of a constant, so each output can be computed
without the earlier ones.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.engine import Floats

_MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15  # SplitMix64's constants begin here
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
SHIFTS = (30, 27, 31)
_TINY = np.float32(np.finfo(np.float32).tiny)


class Purpose(IntEnum):
    """What the noise is used for. Different purposes never share noise."""

    SAMPLE = 0  # propose a token, or sample one without a draft
    ACCEPT = 1  # accept a draft token
    RESIDUAL = 2  # choose the correction token


def exponentials(seed: int, position: int, purpose: Purpose, width: int) -> Floats:
    """Return [width] draws from Exp(1). A wider result starts with the same numbers."""
    return exponentials_at(hash_key(seed, position, purpose), np.arange(width))


def exponentials_at(key: int, places: NDArray[np.int64]) -> Floats:
    """Return the draws from Exp(1) of a `hash_key` at these places: [k]."""
    draws = (_bits(key, places) >> np.uint64(11)).astype(np.float64)
    draws += 0.5  # log(0) is undefined
    draws *= 2.0**-53
    np.log(draws, out=draws)
    np.negative(draws, out=draws)
    # In single precision, one draw in eight million would be exactly 0 and always win.
    return np.maximum(draws.astype(np.float32), _TINY)


def draw(weights: NDArray[Any], key: int) -> int:
    """Sample an index of unnormalized weights [n]: argmax(weights / noise), the Gumbel trick.

    Computes noise only where weights aren't 0, because most are 0 after top-k, top-p or min-p.
    """
    places = np.flatnonzero(weights != 0)
    return int(places[(weights[places] / exponentials_at(key, places)).argmax()])


def uniform(seed: int, position: int, purpose: Purpose) -> float:
    return (mix_bits(hash_key(seed, position, purpose) + STEP) >> 11) * 2.0**-53


def hash_key(seed: int, position: int, purpose: Purpose) -> int:
    """Hash a key to 64 bits, so that similar keys give unrelated bits."""
    key = mix_bits(seed + STEP)
    for part in (position, purpose):
        key = mix_bits(key + (part + 1) * STEP)
    return key


def mix_bits(bits: int) -> int:
    """Return 64 well-mixed bits (SplitMix64's finalizer)."""
    bits &= _MASK
    bits = (bits ^ (bits >> SHIFTS[0])) * FIRST_FACTOR & _MASK
    bits = (bits ^ (bits >> SHIFTS[1])) * SECOND_FACTOR & _MASK
    return bits ^ (bits >> SHIFTS[2])


def _bits(key: int, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the outputs of SplitMix64 with seed `key` at these places, counted from 0: [k]."""
    bits = places.astype(np.uint64)
    bits += np.uint64(1)
    bits *= np.uint64(STEP)
    bits += np.uint64(key)
    for shift, factor in zip(SHIFTS, (FIRST_FACTOR, SECOND_FACTOR), strict=False):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(SHIFTS[2])
    return bits
