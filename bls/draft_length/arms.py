"""Estimates how many tokens each draft length emits, from every round.

An arm is a maximum length and a stop probability. The draft model stops as soon as the joint
probability of its tokens falls below the stop probability. A verified draft shows what every
shorter arm would have drafted and emitted in the same round.

Sources: Leviathan et al., arXiv:2211.17192, section 3.3, for the trade-off; Hugging Face's assisted
generation, for stopping by the draft's own confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.bls.ports import Draft

Floats = NDArray[np.float64]

LENGTHS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
STOP_PROBABILITIES = (0.0, 0.1, 0.2, 0.35, 0.5)
MEMORY = 0.998  # decay per round, over all requests: about the last 500 rounds count
OWN_MEMORY = 0.9  # decay per round of one request: about its last 10 rounds count
PRIOR = 8.0  # weight of priors: in tokens for acceptance rates, in rounds for levels and copies


class Acceptance:
    """Acceptance rate (alpha in Leviathan et al.): of tokens whose predecessors were accepted."""

    def __init__(self) -> None:
        self._accepted = self._decided = 0.0

    def add(self, num_accepted: int, num_drafted: int, memory: float) -> None:
        """Record a verified draft. memory: weight of all earlier drafts."""
        self._accepted = memory * self._accepted + num_accepted
        self._decided = memory * self._decided + min(num_accepted + 1, num_drafted)

    def rate(self, prior: float = 0.5) -> float:
        """Return the acceptance rate, at most 0.99. prior: rate assumed before the first draft."""
        return min(0.99, (self._accepted + PRIOR * prior) / (self._decided + PRIOR))


class Arms:
    """Running sums of the tokens that each arm drafts and emits, per group of rounds."""

    def __init__(self, lengths: Sequence[int], stops: Sequence[float], num_groups: int) -> None:
        self._lengths = np.array(lengths, float)
        self._doubts = np.array([-math.log(stop) if stop else math.inf for stop in stops])
        # [num_groups, 2 (drafted, emitted), num_stops, num_lengths]
        self._sums = np.zeros((num_groups, 2, len(stops), len(lengths)))
        self.rounds = np.zeros(num_groups)

    def expect(self, rates: Sequence[float], rounds: float) -> None:
        """Initialize each group with ``rounds`` imaginary rounds at its acceptance rate.

        rates: acceptance rates, [num_groups].
        """
        rate = np.array(rates)[:, None, None]
        self._sums[:, 0] = rounds * self._lengths
        self._sums[:, 1] = rounds * (1 - rate ** (self._lengths + 1)) / (1 - rate)
        self.rounds[:] = rounds

    def add(self, round_: Floats, *groups: int) -> None:
        """Add a round (see `as_every_arm`) to the given groups."""
        for group in groups:
            self.rounds[group] = MEMORY * self.rounds[group] + 1
            self._sums[group] *= MEMORY
            self._sums[group] += round_

    def speeds(self, fixed: float, each: float, *, first_is_all: bool = False) -> Floats:
        """Return tokens per second, [num_groups, num_stops, num_lengths].

        fixed, each: seconds per round and per drafted token. first_is_all: the first group contains
        the rounds of all other groups; it counts as a prior of ``PRIOR`` rounds for each of them.
        """
        sums, rounds = self._sums, self.rounds[:, None, None]
        if first_is_all:
            sums, rounds = sums + PRIOR / self.rounds[0] * sums[0], rounds + PRIOR
        speeds: Floats = sums[:, 1] / (rounds * fixed + each * sums[:, 0])
        return speeds

    def as_every_arm(self, draft: Draft, num_accepted: int, rate: float) -> Floats:
        """Return the tokens each arm would have drafted and emitted, [2, num_stops, num_lengths].

        rate: acceptance rate assumed for tokens beyond a fully accepted draft.
        """
        round_ = np.empty(self._sums.shape[1:])
        drafted, emitted = round_
        drafted[:] = self._lengths
        log_probs = draft.result.log_probs if draft.result else None
        if log_probs is not None:
            doubt = -np.cumsum(log_probs[: len(draft)], dtype=np.float64)
            ends = doubt.searchsorted(self._doubts, side="right") + 1.0
            ends[ends > len(doubt)] = math.inf  # the draft never fell below the stop probability
            np.minimum(drafted, ends[:, None], out=drafted)
        np.minimum(drafted, num_accepted, out=emitted)
        emitted += 1.0
        if num_accepted == len(draft):
            beyond = np.maximum(0.0, drafted - len(draft))
            emitted += rate * (1 - rate**beyond) / (1 - rate)
        return round_
