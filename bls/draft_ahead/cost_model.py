"""Chooses the number of branches to draft ahead, their length, and the outcomes to cover.

`branches` defines the terms. Plans depend only on the acceptance rate and the costs of calls.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# If the draft's most likely token is wrong, the target's token is among its F next most likely ones
# with probability 1 - (F + 1) ** -RANK_EXPONENT. Kumar et al. found this power law. The value is in
# the range measured for the demo pair (benchmarks/logbook/2026-11-studies.md, "Next guesses").
RANK_EXPONENT = 0.67
BUDGETS = (4, 8, 16, 32, 64, 128)  # possible numbers of branches per call
UNLIMITED = 2**20  # tokens in all branches of a call: effectively unlimited


class AheadPlan(NamedTuple):
    """A plan for drafting ahead.

    num_tokens: number of tokens per branch. num_branches: number of branches per call.
    """

    num_tokens: int
    num_branches: int


# Used until the costs of calls are known.
FIRST_PLAN = AheadPlan(num_tokens=4, num_branches=BUDGETS[1])


@lru_cache(4096)
def split(budget: int, acceptance: float, wanted: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the number of branches F_j for each accepted length j, [num_draft_tokens + 1].

    wanted: whether the accepted length may have branches, [num_draft_tokens + 1]. The counts sum to
    ``budget`` unless no branch is wanted. They maximize the probability of a hit:

        sum over j of P(j) * (1 - (F_j + 1) ** -r),  P(j) = a ** j * (1 - a)

    with acceptance rate a and r = RANK_EXPONENT. At the maximum, F_j + 1 is proportional to
    a ** (j / (1 + r)). For j < num_draft_tokens, the draft's own next token is excluded because it
    was rejected. After a fully accepted draft, that token is a candidate too, so F_j replaces
    F_j + 1 there.

    Source: Kumar et al., "Speculative Speculative Decoding", arXiv:2603.03251.
    """
    places = np.arange(len(wanted))
    weights = np.where(wanted, acceptance ** (places / (1 + RANK_EXPONENT)), 0.0)
    excluded = np.where(places < len(wanted) - 1, 1.0, 0.0)  # the rejected draft token
    ideal = _at_least_none(weights, excluded, budget)
    counts = np.floor(ideal).astype(int)
    rest = np.argsort(counts - ideal, kind="stable")[: budget - counts.sum()]
    counts[rest] += 1
    return tuple(np.where(wanted, counts, 0).tolist())


def _at_least_none(
    weights: NDArray[np.float64], excluded: NDArray[np.float64], budget: int
) -> NDArray[np.float64]:
    """Return scale * weights - excluded, clipped at 0; the scale makes it sum to ``budget``."""
    chosen = weights > 0
    while chosen.any():
        scale = (budget + excluded[chosen].sum()) / weights[chosen].sum()
        counts = np.where(chosen, scale * weights - excluded, 0.0)
        if (counts >= 0).all():
            return counts
        chosen &= counts >= 0
    return np.zeros(len(weights))


def hit_chance(num_tokens: int, num_branches: int, acceptance: float) -> float:
    """Return the probability that the outcome of a verification has a branch."""
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
    """Costs of engine calls in seconds. A pair is (fixed cost, cost per unit)."""

    target: tuple[float, float]  # one verification; unit: draft tokens
    step: tuple[float, float]  # one step of the draft engine; unit: branches
    overhead: float  # of one draft call, outside the engine

    def verification(self, num_tokens: int) -> float:
        """Return the duration of verifying ``num_tokens`` draft tokens, in seconds."""
        return self.target[0] + self.target[1] * num_tokens

    def draft(self, num_tokens: int) -> float:
        """Return the duration of a draft call for ``num_tokens`` without branches, in seconds."""
        return self.overhead + num_tokens * (self.step[0] + self.step[1])

    def fitting(self, longest: int, num_branches: int) -> int:
        """Return the length of the longest branches that are complete when the target answers.

        Assumes that the draft under verification has the same length. A call for branches needs one
        extra step.
        """
        step = self.step[0] + self.step[1] * num_branches
        for num_tokens in range(longest, 0, -1):
            if self.overhead + step * (num_tokens + 1) <= self.verification(num_tokens):
                return num_tokens
        return 0


def best_plan(
    costs: Costs,
    acceptance: float,
    longest: int,
    max_branches: int,
    max_tokens: int = UNLIMITED,
) -> tuple[AheadPlan, float]:
    """Return the plan with the most expected tokens per second, and its speedup.

    max_tokens: maximum number of tokens in all branches together. The speedup is relative to
    rounds that don't draft ahead. If no branch would be complete in time, returns the smallest plan
    with speedup 0.
    """
    best, best_speed = AheadPlan(1, BUDGETS[0]), 0.0
    for budget in BUDGETS:
        if budget > max(max_branches, BUDGETS[0]):
            break
        num_tokens = costs.fitting(min(longest, max_tokens // budget), budget)
        hits = hit_chance(num_tokens, budget, acceptance)
        seconds = costs.verification(num_tokens) + (1 - hits) * costs.draft(num_tokens)
        if num_tokens and emitted(num_tokens, acceptance) / seconds > best_speed:
            best_speed = emitted(num_tokens, acceptance) / seconds
            best = AheadPlan(num_tokens, budget)
    without = max(
        emitted(n, acceptance) / (costs.verification(n) + costs.draft(n))
        for n in range(1, longest + 1)
    )
    return best, best_speed / without
