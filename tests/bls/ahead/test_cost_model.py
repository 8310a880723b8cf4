"""The cost model spreads branches over likely outcomes and chooses the fastest plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.bls.ahead import Costs, best_plan, hit_chance, split

LLAMA_70B_1B = Costs(target=(0.0198, 0.0001), step=(0.00109, 0.0000033), overhead=0.0012)


def test_likely_outcomes_get_more_branches():
    assert split(16, 0.8, (True,) * 5) == (4, 4, 3, 2, 3)
    assert split(16, 0.3, (True,) * 5) == (10, 4, 1, 0, 1)
    assert split(2, 0.9, (True,) * 5) == (1, 0, 0, 0, 1)


@given(
    st.integers(1, 128),
    st.floats(0.05, 0.98),
    st.lists(st.booleans(), min_size=1, max_size=17).map(tuple),
)
def test_a_split_uses_the_whole_branch_budget(budget, acceptance, wanted):
    counts = split(budget, acceptance, wanted)
    assert sum(counts) == (budget if any(wanted) else 0)
    assert all(count >= 0 for count in counts)
    assert not any(count for count, want in zip(counts, wanted, strict=True) if not want)


def test_no_other_split_has_a_better_hit_chance():
    acceptance, counts = 0.8, np.array(split(24, 0.8, (True,) * 7))

    def hits(of):
        reached = acceptance ** np.arange(7)
        ends = np.append(reached[:-1] * (1 - acceptance), reached[-1])
        found = 1 - (of + 1.0) ** -0.67
        found[-1] = 1 - (1 - acceptance) * float(of[-1]) ** -0.67
        return (ends * found).sum()

    best = hits(counts)
    assert best == pytest.approx(hit_chance(6, 24, acceptance))
    for a in range(7):
        for b in range(7):
            moved = counts.copy()
            moved[a] -= 1
            moved[b] += 1
            if moved.min() >= 0 and moved[-1] > 0:
                assert hits(moved) <= best + 1e-12


def test_branches_finish_within_the_time_of_a_verification():
    plan, advantage = best_plan(LLAMA_70B_1B, 0.8, 32, 128)
    assert 8 <= plan.num_tokens <= 14
    assert (plan.num_tokens + 1) * 0.00109 < 0.02
    assert plan.num_branches == 128
    assert advantage > 1.25


def test_a_slow_draft_engine_does_not_benefit_from_drafting_ahead():
    slow = Costs(target=(0.02, 0.0), step=(0.02, 0.0), overhead=0.001)
    assert best_plan(slow, 0.3, 8, 128)[0].num_tokens == 1
