"""Exact distributions of sampled tokens, and statistical tests of samples against them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc

# A correct sampler fails a test with a probability of 1 in 100,000. Seeds are fixed, so a test
# fails either always or never. With fewer than 100 such tests, the probability that any test is a
# false alarm is below 1 in 1,000.
ALARM = 1e-5


@dataclass(frozen=True)
class Warp:
    """Sampling parameters of a request, applied to logits in double precision."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __str__(self) -> str:
        return " ".join(f"{name} {value}" for name, value in vars(self).items())

    def of(self, logits) -> np.ndarray:
        """Return the warped probabilities for logits [..., vocab_size]."""
        scores = np.asarray(logits, np.float64) / self.temperature
        p = np.exp(scores - scores.max(-1, keepdims=True))
        order = np.argsort(-p, axis=-1)
        ranked = np.take_along_axis(p, order, -1)
        if self.top_k:
            ranked[..., self.top_k :] = 0
        ranked /= ranked.sum(-1, keepdims=True)
        ranked[np.cumsum(ranked, -1) - ranked >= self.top_p] = 0  # the tokens before it reach top_p
        ranked[ranked < self.min_p * ranked[..., :1]] = 0
        np.put_along_axis(p, order, ranked, -1)
        return p / p.sum(-1, keepdims=True)


WARPS = [
    Warp(temperature, **cut)
    for temperature in (0.7, 1.0, 1.3)
    for cut in ({}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.1})
]


def p_value(counts, probabilities) -> float:
    """Return the p-value of Pearson's chi-square test.

    Cells with fewer than five expected samples are merged.
    """
    counts, probabilities = np.ravel(counts), np.ravel(probabilities)
    possible = probabilities > 0
    if counts[~possible].any():
        return 0.0
    counts, probabilities = counts[possible], probabilities[possible]
    order = np.argsort(-probabilities)
    expected = probabilities[order] * counts.sum()
    starts, room = [], np.inf
    for cell, amount in enumerate(expected):
        if room >= 5:
            starts.append(cell)
            room = 0.0
        room += amount
    if room < 5:
        starts.pop()  # merge the rest into the last cell
    if len(starts) < 2:
        return 1.0
    found, expected = (np.add.reduceat(amounts, starts) for amounts in (counts[order], expected))
    return float(chdtrc(len(starts) - 1, ((found - expected) ** 2 / expected).sum()))


def fits(counts, probabilities) -> bool:
    """Return whether counts of sampled tokens, [n] or [n, n], fit probabilities of this shape."""
    return p_value(counts, probabilities) > ALARM


def is_share(successes: int, trials: int, probability: float) -> bool:
    """Return whether the number of successes in a number of trials fits a probability."""
    return fits([successes, trials - successes], [probability, 1 - probability])
