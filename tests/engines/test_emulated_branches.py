"""The emulated draft engine drafts branches with configured hit rates and step times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from distributions import is_share
from emulated import emulated, pair
from engine_harness import GREEDY, branch_call, prompt
from virtual_timer import VirtualTimer

from tandem.engines.emulated.engine import MS
from tandem.engines.engine import SamplingParams, Words

WIDE = {"vocab_size": 4096, "high_id": 4000, "max_seq_len": 4096}
SAMPLED = SamplingParams(temperature=1.0, seed=11)
TRIALS = 300  # detects a hit rate of 0.6 instead of 0.4 in 99% of cases


def ranks(draft, target, *, sampling=GREEDY) -> list[int]:
    """Return, per trial, the target token's rank (from 0) in the draft's guesses, or -1."""
    found = []
    for seed in range(TRIALS):
        ids = prompt(seed, 12)
        guesses = draft.call(
            ids, sampling=sampling, **branch_call([], 16, 1)
        ).last.branches.outcomes
        said = target.tokens(ids, 1, sampling=sampling)[0]
        found.append(next((i for i, x in enumerate(guesses[:, 1].tolist()) if x == said), -1))
    return found


@pytest.mark.parametrize("sampling", [GREEDY, replace(SAMPLED, temperature=0.4)])
def test_alternatives_have_the_default_hit_rate(sampling):
    found = ranks(*pair(alpha=0.6, **WIDE), sampling=sampling)
    missed = [rank for rank in found if rank != 0]
    assert is_share(len(missed), len(found), 0.4)
    for count in (1, 3, 7, 15):
        hits = sum(0 < rank <= count for rank in missed)
        assert is_share(hits, len(missed), 1 - (count + 1) ** -0.67)


def test_alternatives_exponent_sets_the_hit_rate_of_alternatives():
    for exponent in (0.0, 0.3, 2.0):
        found = ranks(*pair(alpha=0.3, alternatives_exponent=exponent, **WIDE))
        missed = [rank for rank in found if rank != 0]
        hits = sum(rank > 0 for rank in missed)
        assert is_share(hits, len(missed), 1 - 16**-exponent)


def test_alternatives_are_distinct_and_not_banned():
    draft = emulated(role="draft", alpha=0.3)
    banned = Words.of(*([token] for token in range(2, 131, 2)))
    for seed in range(30):
        found = draft.call(
            prompt(seed, 12),
            sampling=replace(GREEDY, bad_words=banned),
            **branch_call([101], 12, 1),
        )
        outcomes = [tuple(outcome) for outcome in found.last.branches.outcomes.tolist()]
        assert len(set(outcomes)) == len(outcomes) == 24
        assert all(x % 2 for _, x in outcomes)
        assert (0, 101) not in outcomes


def test_each_concurrent_row_lengthens_a_step():
    timer = VirtualTimer()
    draft = emulated(timer, role="draft", step_ms=10.0, branch_slope=0.1, batch_slope=0.01)
    draft.start(prompt(1, 9), **branch_call([4, 5], 3, 2))  # 9 rows
    timer.advance()
    assert timer.now_ns() == pytest.approx(10 * (1 + 0.8) * MS)
    draft.start(prompt(2, 9), 2)  # another call, from the third step on
    timer.advance()
    assert timer.now_ns() == pytest.approx(2 * 18 * MS)
    timer.advance()
    assert timer.now_ns() == pytest.approx((2 * 18 + 10 * (1 + 0.01 + 0.8)) * MS)
    timer.advance()  # the only call
    assert timer.now_ns() == pytest.approx((2 * 18 + 18.1 + 10) * MS)


@pytest.mark.parametrize(("passed_ms", "tokens"), [(5, 0), (15, 0), (25, 1), (49, 3), (69, 5)])
def test_a_stop_returns_the_branch_tokens_finished_so_far(passed_ms, tokens):
    timer = VirtualTimer()
    draft = emulated(timer, role="draft", step_ms=10.0)
    whole = emulated(role="draft").call(prompt(1, 9), **branch_call([4, 5], 3, 6)).last.branches
    pending = draft.start(prompt(1, 9), request_id="x", **branch_call([4, 5], 3, 6))
    timer.run_ns(passed_ms * MS)
    draft.engine.stop("x")
    outcome = pending.wait()
    assert timer.now_ns() == passed_ms * MS
    assert outcome.error is None
    found = outcome.last.branches
    assert found.lengths.tolist() == ([tokens] * 9 if tokens else [])
    if tokens:
        assert found.ids.tolist() == whole.ids[:, :tokens].tolist()
        assert found.outcomes.tolist() == whole.outcomes.tolist()
    draft.start(prompt(1, 9), 1)
    timer.advance()  # the stopped call has no events left
    timer.advance()


def test_branches_are_limited_by_the_kv_cache():
    engine = emulated(role="draft", kv_cache_tokens=128)
    found = engine.call(prompt(1, 20), **branch_call([4, 5], 20, 6)).last.branches
    assert len(found.lengths) == 128 // 6
    assert found.outcomes[:, 0].tolist() == [0] * 7 + [1] * 7 + [2] * 7
