"""What rounds earn by the length of their drafts, learned from every round for every length."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.bls.effects import Draft

Floats = NDArray[np.float64]

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
STOP_PROBABILITIES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
MEMORY = 0.98  # how much of what a request has learned outlives a round,
SHARED_MEMORY = 0.998  # and of what all have,
PRIOR_ROUNDS = 8.0  # which counts as so many rounds of a request's own
MOST_LIKELY = 0.99  # acceptance of a token that nothing is known about
# Of what is best for all, that a request's own arm must promise. Less may be chance; and where many
# sequences share a processor, rounds of one length follow each other without waiting.
OWN_ADVANTAGE = 1.04


class RoundEarnings:
    """What each arm drafted and emitted, over remembered rounds."""

    def __init__(self, num_stops: int, num_lengths: int, memory: float) -> None:
        self._memory = memory
        self.rounds = 0.0
        self.sums = np.zeros((2, num_stops, num_lengths))  # drafted, and emitted

    def add(self, round_: Floats) -> None:
        """Take a round in, as each arm would have had it, [2, num_stops, num_lengths]."""
        self.rounds = self._memory * self.rounds + 1
        self.sums *= self._memory
        self.sums += round_


class Arm(NamedTuple):
    """A longest length and a stop probability, and what they promise in tokens a second."""

    length: int
    stop: float
    rate: float


class Arms:
    """Every length with every stop probability: what requests earned by them, together and each.

    To be asked once something is known: a round, or what ``confidence`` says.

    acceptance: of a token, as far as nothing is known; ``confidence`` rounds count for it.
    """

    def __init__(
        self,
        longest: int,
        stops: Sequence[float],
        *,
        acceptance: float = 0.5,
        confidence: float = 0.0,
    ) -> None:
        longest = max(1, longest)
        self.lengths = [n for n in LENGTHS if n < longest] + [longest]
        self.stops = list(stops)
        self._lengths = np.array(self.lengths, float)
        self._doubts = np.array([-math.log(stop) if stop else math.inf for stop in stops])
        self._accepted, self._decided = 2 * acceptance, 2.0  # of tokens whose forerunners all were
        self.all = RoundEarnings(len(stops), len(self.lengths), SHARED_MEMORY)
        if confidence:
            emitted = (1 - acceptance ** (self._lengths + 1)) / (1 - acceptance)
            self.all.sums[:] = confidence * np.stack((self._lengths, emitted))[:, None]
            self.all.rounds = confidence

    def of_a_request(self) -> RoundEarnings:
        """Return what a request has earned that begins."""
        return RoundEarnings(len(self.stops), len(self.lengths), MEMORY)

    def add(self, draft: Draft, num_accepted: int, own: RoundEarnings) -> None:
        """Take a round in, for one request and for all."""
        decided = min(num_accepted + 1, len(draft))
        self._accepted = SHARED_MEMORY * self._accepted + num_accepted
        self._decided = SHARED_MEMORY * self._decided + decided
        round_ = self._as_every_arm(draft, num_accepted)
        self.all.add(round_)
        own.add(round_)

    def rates(self, own: RoundEarnings, fixed: float, each: float) -> Floats:
        """Tokens a second of every arm, where a round takes so long and each draft token.

        [num_stops, num_lengths]; all requests' rounds count for PRIOR_ROUNDS of its own.
        """
        drafted, emitted = own.sums + PRIOR_ROUNDS / self.all.rounds * self.all.sums
        rates: Floats = emitted / ((own.rounds + PRIOR_ROUNDS) * fixed + each * drafted)
        return rates

    def best(self, own: RoundEarnings, limit: int, fixed: float, each: float) -> Arm:
        """Return the best that fits: for all, unless this request gains by another.

        The next longer one fits too, cut to the limit (>= 1): what is left of an answer is one
        draft, not a draft and a round for its rest.
        """
        fitting = min(bisect.bisect_left(self.lengths, limit) + 1, len(self.lengths))
        rates = self.rates(own, fixed, each)[:, :fitting].ravel()
        best, for_all = int(rates.argmax()), self._best_for_all(fitting, fixed, each)
        chosen = best if rates[best] > OWN_ADVANTAGE * rates[for_all] else for_all
        stop, length = divmod(chosen, fitting)
        return Arm(min(limit, self.lengths[length]), self.stops[stop], float(rates[chosen]))

    def _best_for_all(self, fitting: int, fixed: float, each: float) -> int:
        """Return which of the first lengths of each stop probability all requests gain most by."""
        drafted, emitted = self.all.sums[:, :, :fitting]
        return int((emitted / (self.all.rounds * fixed + each * drafted)).argmax())

    def emitted(self, own: RoundEarnings, length: int) -> float:
        """Tokens that a round with a draft of that length (>= 1) emits."""
        at = bisect.bisect_right(self.lengths, length) - 1
        shared = self.all.sums[1, 0, at] / self.all.rounds
        emitted = own.sums[1, 0, at] + PRIOR_ROUNDS * shared
        return float(emitted) / (own.rounds + PRIOR_ROUNDS)

    def _as_every_arm(self, draft: Draft, num_accepted: int) -> Floats:
        """What each arm would have drafted and emitted in this round, [2, num_stops, num_lengths].

        Beyond the end of a draft that was accepted whole, more is accepted at the average rate.
        """
        drafted_here = len(draft)
        round_ = np.empty_like(self.all.sums)
        drafted, emitted = round_
        np.minimum(self._lengths, self._ends(draft)[:, None], out=drafted)
        np.minimum(drafted, num_accepted, out=emitted)
        emitted += 1.0
        if num_accepted == drafted_here:
            rate = min(MOST_LIKELY, self._accepted / self._decided)
            beyond = np.maximum(0.0, drafted - drafted_here)
            emitted += rate * (1 - rate**beyond) / (1 - rate)
        return round_

    def _ends(self, draft: Draft) -> Floats:
        """Behind how many tokens each stop probability ends the draft, [num_stops].

        The draft model tells how likely it found each token; their sum is of all tokens so far.
        """
        log_probs = draft.answer.log_probs if draft.answer else None
        if log_probs is None:
            return np.full(len(self.stops), math.inf)
        # It gets less from token to token: so many are as likely as the stop probability, or more.
        doubt = -np.cumsum(log_probs[: len(draft)], dtype=np.float64)
        ends = doubt.searchsorted(self._doubts, side="right").astype(np.float64)
        ends[ends == len(doubt)] = math.inf
        ends += 1.0
        return ends
