"""How many tokens to draft: a fixed number, or what earns most tokens a second.

Adaptive lengths are chosen among arms. An arm is a longest length and a probability: the draft
model stops by itself as soon as it finds it less probable that all its tokens so far are right. A
round that drafted n tokens and had m accepted shows what every arm would have drafted and emitted
there: a shorter one exactly, a longer one up to its end and by averages from there. So all arms
learn from every round, and what an arm earns is

    tokens a second = tokens a round / (seconds of a round, given the tokens drafted in it)

where the seconds are learned from the calls themselves: they rise with the load, and the choice
follows. The target alone is an arm as well; it wins where drafts do not pay.

Source of the trade-off: Leviathan et al., arXiv:2211.17192, section 3.3; of stopping by the draft's
own confidence: Hugging Face's assisted generation.
"""

from __future__ import annotations

import math
import threading
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.bls.effects import Draft, DraftPlan

Floats = NDArray[np.float64]

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)
STOP_PROBABILITIES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
MEMORY = 0.98  # how much of what a request has learned outlives a round,
SHARED_MEMORY = 0.998  # and of what all have,
PRIOR_ROUNDS = 20.0  # which counts as so many rounds of a request's own
COST_MEMORY = 0.99
EXPLORE_EVERY = 100  # rounds between two drafts of full length
FIRST_ROUNDS = 2  # of a request whose deployment has no statistics yet: at full length
ADVANTAGE = 1.02  # of the target alone, before drafting stops
FIRST_REST, LONGEST_REST = 8, 64  # tokens without drafts before they are tried again
TRIAL_TOKENS = 2  # and how many then
PLAIN_SAMPLE = 4  # tokens without drafts, to learn what they cost
PLAIN_EVERY = 400  # rounds


class DraftLength(Protocol):
    """Decides on the length of a draft model's next draft."""

    def plan(self, limit: int) -> DraftPlan:
        """Decide; ``limit`` (>= 1) is what fits."""

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Note what became of a draft, and how long the target took to say so."""

    def observe_plain_step(self, num_tokens: int, seconds: float) -> None:
        """Note how long the target took for tokens without drafts."""


class FixedLength:
    """The same length in every round."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def plan(self, limit: int) -> DraftPlan:
        """Draft as many as fit."""
        return DraftPlan(min(limit, self._num_tokens))

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Nothing changes."""

    def observe_plain_step(self, num_tokens: int, seconds: float) -> None:
        """Nothing changes."""


class LatencyModel:
    """``seconds = fixed + each * tokens``, fitted to recent calls by weighted least squares.

    through_zero: what calls of one length alone are taken for: nothing fixed, or nothing else.
    """

    def __init__(self, *, through_zero: bool) -> None:
        self._through_zero = through_zero
        self._sums = np.zeros(5)  # of 1, x, y, x * x, x * y

    @property
    def known(self) -> bool:
        """Whether there was any call."""
        return bool(self._sums[0])

    def add(self, tokens: int, seconds: float) -> None:
        """Take a call in. One that took far longer than expected met something else."""
        if self.known:
            fixed, each = self.fit()
            seconds = min(seconds, 3 * (fixed + each * tokens))
        x, y = float(tokens), seconds
        self._sums = COST_MEMORY * self._sums + np.array((1.0, x, y, x * x, x * y))

    def fit(self) -> tuple[float, float]:
        """Return ``fixed`` and ``each``, neither below zero."""
        n, x, y, xx, xy = self._sums
        spread = n * xx - x * x
        if spread < 1e-2 * n * n:
            return (0.0, y / x) if self._through_zero else (y / n, 0.0)
        each = max(0.0, (n * xy - x * y) / spread)
        fixed = (y - each * x) / n
        return (fixed, each) if fixed > 0 else (0.0, xy / xx)


class Arms:
    """What each arm drafted and emitted a round, on average over remembered rounds."""

    def __init__(self, lengths: Floats, stops: Floats, memory: float) -> None:
        self.lengths, self.stops = lengths, stops  # [num_arms] each
        self._memory = memory
        self.rounds = 0.0
        self.drafted = np.zeros(len(lengths))
        self.emitted = np.zeros(len(lengths))

    def add(self, drafted: Floats, emitted: Floats) -> None:
        """Take a round in, as each arm would have had it."""
        self.rounds = self._memory * self.rounds + 1
        self.drafted = self._memory * self.drafted + drafted
        self.emitted = self._memory * self.emitted + emitted


class DraftStatistics:
    """What all requests of a deployment have learned about drafts. Thread-safe.

    rated: the draft model returns the probability of each token and can stop by it.
    """

    def __init__(self, max_draft_len: int, *, rated: bool) -> None:
        self.rated = rated
        self.max_draft_len = max_draft_len
        lengths = [n for n in LENGTHS if n < max_draft_len] + [max(1, max_draft_len)]
        stops = STOP_PROBABILITIES if rated else (0.0,)
        grid = np.array([(n, s) for s in stops for n in lengths])
        self.arms = self.new_arms(grid[:, 0], grid[:, 1], SHARED_MEMORY)
        self._draft = LatencyModel(through_zero=True)
        self._target = LatencyModel(through_zero=False)
        self._alone = LatencyModel(through_zero=True)
        self._accepted = np.array([1.0, 2.0])  # of tokens whose forerunners all were, and of them
        self._lock = threading.Lock()
        self._rounds_since_alone = PLAIN_EVERY

    @staticmethod
    def new_arms(lengths: Floats, stops: Floats, memory: float) -> Arms:
        """Return arms that know nothing."""
        return Arms(lengths, stops, memory)

    def own_arms(self) -> Arms:
        """Return the arms of a request that begins."""
        return self.new_arms(self.arms.lengths, self.arms.stops, MEMORY)

    def wants_plain_step(self) -> bool:
        """Whether it is time to see again what the target costs alone."""
        with self._lock:
            return self._rounds_since_alone >= PLAIN_EVERY and self._target.known

    def learn(self, draft: Draft, num_accepted: int, seconds: float, own: Arms) -> None:
        """Take a round in, for one request and for all."""
        answer = draft.answer
        assert answer is not None
        with self._lock:
            self._draft.add(len(answer.tokens), answer.seconds)
            self._target.add(len(draft), seconds)
            self._rounds_since_alone += 1
        self.learn_acceptance(draft, num_accepted, own)

    def learn_acceptance(self, draft: Draft, num_accepted: int, own: Arms) -> None:
        """Take a round in whose times say nothing, since the prompt was computed in it."""
        with self._lock:
            decided = min(num_accepted + 1, len(draft))
            self._accepted = SHARED_MEMORY * self._accepted + np.array([num_accepted, decided])
            drafted, emitted = self._as_every_arm(draft, num_accepted)
            self.arms.add(drafted, emitted)
        own.add(drafted, emitted)

    def learn_plain_step(self, num_tokens: int, seconds: float) -> None:
        """Take a call without drafts in."""
        with self._lock:
            self._alone.add(num_tokens, seconds)
            self._rounds_since_alone = 0

    def rates(self, own: Arms) -> tuple[Floats, float]:
        """Tokens a second of every arm, [num_arms], and of the target alone."""
        with self._lock:
            (draft_fixed, draft_each), (target_fixed, target_each) = (
                self._draft.fit(),
                self._target.fit(),
            )
            shared, weight = self.arms, PRIOR_ROUNDS / max(self.arms.rounds, 1e-9)
            rounds = own.rounds + PRIOR_ROUNDS
            drafted = own.drafted + weight * shared.drafted
            emitted = own.emitted + weight * shared.emitted
            alone = self._seconds_alone(target_fixed)
        fixed, each = draft_fixed + target_fixed, draft_each + target_each
        return emitted / (rounds * fixed + drafted * each), 1 / alone

    @property
    def knows_costs(self) -> bool:
        """Whether the calls of a round have been timed."""
        return self._draft.known and self._target.known

    def _seconds_alone(self, target_fixed: float) -> float:
        """Seconds a token of the target alone, in a call of some length."""
        if not self._alone.known:
            return target_fixed
        fixed, each = self._alone.fit()
        return each + fixed / LONGEST_REST

    def _as_every_arm(self, draft: Draft, num_accepted: int) -> tuple[Floats, Floats]:
        """What each arm would have drafted and emitted in this round, [num_arms] each.

        Beyond the end of a draft that was accepted whole, more is accepted at the average rate.
        """
        arms, drafted_here = self.arms, len(draft)
        drafted = np.minimum(arms.lengths, self._stop(draft))
        emitted = 1.0 + np.minimum(float(num_accepted), drafted)
        if num_accepted == drafted_here:
            beyond = np.maximum(0.0, drafted - drafted_here)
            rate = min(0.99, self._accepted[0] / self._accepted[1])
            emitted = emitted + rate * (1 - rate**beyond) / (1 - rate)
        return drafted, emitted

    def _stop(self, draft: Draft) -> Floats:
        """Behind how many tokens each arm's stop probability ends the draft, [num_arms]."""
        ends = np.full(len(self.arms.stops), math.inf)
        chances = chances_of(draft)
        for at in range(len(chances) - 1, -1, -1):
            ends[chances[at] < self.arms.stops] = at + 1
        return ends


class AdaptiveLength:
    """The arm that promises most for one request, from its own rounds and everybody's."""

    def __init__(self, draft_statistics: DraftStatistics) -> None:
        self._draft_statistics = draft_statistics
        self._arms = draft_statistics.own_arms()
        self._rounds = 0
        self._rest = FIRST_REST
        self._resting = False

    def plan(self, limit: int) -> DraftPlan:
        """Choose the best arm that fits, or a draft of full length to learn from."""
        draft_statistics = self._draft_statistics
        if self._rounds and draft_statistics.wants_plain_step():
            return DraftPlan(0, plain_tokens=PLAIN_SAMPLE)
        if not draft_statistics.knows_costs or self._explores():
            return self._draft(limit)
        rates, alone = draft_statistics.rates(self._arms)
        best = int(np.argmax(np.where(self._arms.lengths <= max(1, limit), rates, -1.0)))
        if alone > ADVANTAGE * rates[best]:
            return self._rest_or_trial(limit)
        self._resting, self._rest = False, FIRST_REST
        length, stop = self._arms.lengths[best], self._arms.stops[best]
        return self._draft(min(limit, int(length)), float(stop))

    def verified(self, draft: Draft, num_accepted: int, seconds: float) -> None:
        """Learn from a round; the first one's times are those of the prompt."""
        self._rounds += 1
        if self._rounds == 1:
            self._draft_statistics.learn_acceptance(draft, num_accepted, self._arms)
        else:
            self._draft_statistics.learn(draft, num_accepted, seconds, self._arms)

    def observe_plain_step(self, num_tokens: int, seconds: float) -> None:
        """Learn what the target costs alone."""
        if num_tokens:
            self._draft_statistics.learn_plain_step(num_tokens, seconds)

    def _explores(self) -> bool:
        if self._resting:
            return False
        inexperienced = self._draft_statistics.arms.rounds < FIRST_ROUNDS
        return inexperienced or self._rounds % EXPLORE_EVERY == EXPLORE_EVERY - 1

    def _rest_or_trial(self, limit: int) -> DraftPlan:
        """Leave the target alone for a while, then try a short draft, then a longer while."""
        self._resting = not self._resting
        if not self._resting:
            return self._draft(min(limit, TRIAL_TOKENS))
        rest, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
        return DraftPlan(0, plain_tokens=rest)

    def _draft(self, num_tokens: int, stop: float = 0.0) -> DraftPlan:
        return DraftPlan(num_tokens, stop, wants_log_probs=self._draft_statistics.rated)


def chances_of(draft: Draft) -> Floats:
    """How likely the draft model found it, behind each token, that all so far are right.

    [num_draft_tokens]; empty where it does not say.
    """
    if draft.answer is None or draft.answer.log_probs is None:
        return np.empty(0)
    chances: Floats = np.exp(np.cumsum(draft.answer.log_probs[: len(draft)], dtype=np.float64))
    return chances
