"""Chooses how many branches to draft ahead, their length, and the outcomes to cover.

`branches` defines the terms. All functions here depend only on the acceptance rate and the costs of
calls.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# If the draft's first guess is wrong, the target's token is among its next F guesses with
# probability 1 - (F + 1) ** -RANK_EXPONENT: measured on the demo pair, greedy.
RANK_EXPONENT = 0.67
BUDGETS = (4, 8, 16, 32, 64, 128)  # branches in one call
MOST_TOKENS = 2**20  # of all branches of a call: no limit
SLACK = 0.95  # share of a verification within which a call with branches should end


class AheadPlan(NamedTuple):
    """A plan for drafting ahead.

    num_tokens: tokens per branch. num_branches: branches per call. on_miss: tokens to draft if
    there is no branch for the outcome.
    """

    num_tokens: int
    num_branches: int
    on_miss: int


# Until it is known what calls take.
FIRST_PLAN = AheadPlan(num_tokens=4, num_branches=BUDGETS[1], on_miss=4)


@lru_cache(4096)
def split(budget: int, acceptance: float, wanted: tuple[bool, ...]) -> tuple[int, ...]:
    """Return how many branches to draft after each accepted length, [num_draft_tokens + 1].

    They sum to ``budget`` unless no branch is wanted, and maximize the probability of a hit,

        sum over j of P(j) * (1 - (F_j + 1) ** -r),  P(j) = a ** j * (1 - a)

    whose maximum has F_j + 1 in proportion to a ** (j / (1 + r)). After the whole draft the first
    guess, right with probability a, is a candidate too: there F_j replaces F_j + 1.
    """
    places = np.arange(len(wanted))
    weights = np.where(wanted, acceptance ** (places / (1 + RANK_EXPONENT)), 0.0)
    excluded = np.where(places < len(wanted) - 1, 1.0, 0.0)  # the draft's own next token
    ideal = _at_least_none(weights, excluded, budget)
    counts = np.floor(ideal).astype(int)
    rest = np.argsort(counts - ideal, kind="stable")[: budget - counts.sum()]
    counts[rest] += 1
    return tuple(np.where(wanted, counts, 0).tolist())


def _at_least_none(
    weights: NDArray[np.float64], excluded: NDArray[np.float64], budget: int
) -> NDArray[np.float64]:
    """Return scale * weights - excluded, clipped at 0, with the scale that sums to ``budget``."""
    chosen = weights > 0
    while chosen.any():
        scale = (budget + excluded[chosen].sum()) / weights[chosen].sum()
        counts = np.where(chosen, scale * weights - excluded, 0.0)
        if (counts >= 0).all():
            return counts
        chosen &= counts >= 0
    return np.zeros(len(weights))


def hit_chance(num_tokens: int, num_branches: int, acceptance: float) -> float:
    """Return the probability that a verification's outcome has a branch."""
    counts = np.array(split(num_branches, acceptance, (True,) * (num_tokens + 1)))
    reached = acceptance ** np.arange(num_tokens + 1)
    found = 1 - (counts[:-1] + 1.0) ** -RANK_EXPONENT
    hits = float((reached[:-1] * (1 - acceptance) * found).sum())
    if counts[-1]:
        hits += float(reached[-1] * (1 - (1 - acceptance) * counts[-1] ** -RANK_EXPONENT))
    return hits


def emitted(num_tokens: int, acceptance: float) -> float:
    """Return the expected number of tokens that a round with ``num_tokens`` draft tokens emits."""
    return (1 - acceptance ** (num_tokens + 1)) / (1 - acceptance)


class Costs(NamedTuple):
    """Costs of calls in seconds. A pair is (fixed cost, cost per unit)."""

    target: tuple[float, float]  # a verification, by draft tokens
    step: tuple[float, float]  # one step of the draft engine, by branches
    way: float  # of a draft call to the engine and back

    def verification(self, num_tokens: int) -> float:
        """Return the seconds that verifying a draft takes."""
        return self.target[0] + self.target[1] * num_tokens

    def draft(self, num_tokens: int) -> float:
        """Return the seconds that a draft call without branches takes."""
        return self.way + num_tokens * (self.step[0] + self.step[1])

    def fitting(self, longest: int, num_branches: int) -> int:
        """Return the maximum branch length that is complete when the target answers.

        The draft that the target verifies is assumed to have the same length. A call with branches
        needs one extra step.
        """
        step = self.step[0] + self.step[1] * num_branches
        for num_tokens in range(longest, 0, -1):
            if self.way + step * (num_tokens + 1) <= SLACK * self.verification(num_tokens):
                return num_tokens
        return 0


def best_plan(
    costs: Costs,
    acceptance: float,
    longest: int,
    most_branches: int,
    most_tokens: int = MOST_TOKENS,
) -> tuple[AheadPlan, float]:
    """Return the plan with the highest expected tokens per second, and its speedup.

    most_tokens: maximum number of tokens in all branches together. A hit is verified immediately; a
    miss waits for a draft first. If no branch would be complete in time, return the smallest plan
    with speedup 0.
    """
    best, most = AheadPlan(1, BUDGETS[0], longest), 0.0
    for budget in BUDGETS:
        if budget > max(most_branches, BUDGETS[0]):
            break
        num_tokens = costs.fitting(min(longest, most_tokens // budget), budget)
        hits = hit_chance(num_tokens, budget, acceptance)
        for on_miss in range(1, num_tokens + 1):
            tokens = hits * emitted(num_tokens, acceptance)
            tokens += (1 - hits) * emitted(on_miss, acceptance)
            seconds = hits * costs.verification(num_tokens)
            seconds += (1 - hits) * (costs.verification(on_miss) + costs.draft(on_miss))
            if tokens / seconds > most:
                most, best = tokens / seconds, AheadPlan(num_tokens, budget, on_miss)
    without = max(
        emitted(n, acceptance) / (costs.verification(n) + costs.draft(n))
        for n in range(1, longest + 1)
    )
    return best, most / without
