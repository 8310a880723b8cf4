"""In the torch engine, branches use only free KV blocks and never delay other calls."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from engine_harness import GREEDY, Conducted, Pending, branch_call, prompt

from tandem.engines.engine import EngineRequest
from tandem.engines.errors import RequestError
from tandem.engines.stepping import kv_cache
from tandem.engines.stepping.kv_cache import BranchKV

BLOCK = 8


def test_only_the_most_likely_branches_are_drafted_if_memory_is_low(make_harness):
    engine = make_harness(kv_cache_tokens=16 * BLOCK)
    ids = prompt(1, 40)
    found = engine.call(ids, **branch_call([4, 5, 6], 10, 6)).last.branches
    taken = [(40 + 3 + BLOCK - 1) // BLOCK, 13 * 6]  # blocks of the context, tokens of branches
    assert taken[0] * BLOCK + taken[1] <= 16 * BLOCK < taken[0] * BLOCK + taken[1] + 6
    assert found.outcomes[:, 0].tolist() == [0] * 4 + [1] * 3 + [2] * 3 + [3] * 3
    whole = make_harness().call(ids, **branch_call([4, 5, 6], 10, 6)).last.branches
    for accepted, count in enumerate((4, 3, 3, 3)):
        rows = [found.outcomes[:, 0] == accepted, whole.outcomes[:, 0] == accepted]
        np.testing.assert_array_equal(found.ids[rows[0]], whole.ids[rows[1]][:count])


def test_branches_do_not_evict_recently_used_kv_blocks(make_harness):
    engine = make_harness(kv_cache_tokens=16 * BLOCK)
    ids, other = prompt(2, 40), prompt(3, 60)
    engine.tokens(other)
    found = engine.call(ids, **branch_call([4, 5, 6], 10, 6)).last.branches
    assert len(found.lengths) == 2
    assert engine.computed(other) == 1


def test_branches_may_evict_stale_kv_blocks(make_harness, monkeypatch):
    engine = make_harness(kv_cache_tokens=16 * BLOCK)
    engine.tokens(prompt(3, 60))
    monkeypatch.setattr(kv_cache, "STALE_SECONDS", -1.0)
    found = engine.call(prompt(2, 40), **branch_call([4, 5, 6], 10, 6)).last.branches
    assert len(found.lengths) == 13


def test_a_waiting_call_reclaims_the_kv_blocks_of_branches_immediately(make_harness):
    """Unfinished branches are then returned, and no cached sequence is evicted."""
    engine = make_harness(kv_cache_tokens=32 * BLOCK)
    idle = prompt(4, 40)
    engine.tokens(idle)
    branching, plain = Pending(), Pending()
    order: list[str] = []

    def start(pending, name, ids, new=1, **given):
        def respond(answer):
            order.append(name)
            pending.respond(answer)

        given = {"draft_ids" if key == "drafts" else key: value for key, value in given.items()}
        given["draft_ids"] = np.array(given.get("draft_ids", ()), np.int32)
        request = EngineRequest(name, np.array(ids, np.int32), new, sampling=GREEDY, **given)
        engine.engine.submit(request, respond)

    ids = prompt(5, 40)
    Conducted(
        engine,
        prompt(6, 20),
        20,
        {
            1: lambda: start(branching, "branching", ids, **branch_call([4, 5], 4, 40)),
            6: lambda: start(plain, "plain", prompt(7, 80), 8),
        },
    ).wait()
    found = branching.wait().last.branches
    assert len(plain.wait().tokens) == 8
    assert order == ["branching", "plain"]
    assert 0 < found.lengths.max() < 10
    whole = make_harness().call(ids, **branch_call([4, 5], 4, 40)).last.branches
    width = found.ids.shape[1]
    behind = {tuple(outcome): row[:width] for outcome, row in zip(*whole[:2], strict=True)}
    for outcome, row in zip(*found[:2], strict=True):
        assert row.tolist() == behind[tuple(outcome)].tolist()
    assert engine.computed(idle) == 1


def test_a_waiting_call_that_is_stopped_takes_no_kv_blocks_from_branches(make_harness):
    """The other call waits and is stopped while the prompt of the branching call is computed."""
    engine = make_harness(kv_cache_tokens=32 * BLOCK, max_batch_tokens=16)
    actions = {
        1: lambda: engine.start(prompt(5, 100), **branch_call([4, 5], 2, 9)),
        3: lambda: engine.start(prompt(7, 200), request_id="waits"),
        5: lambda: engine.engine.stop("waits"),
    }
    running = Conducted(engine, prompt(6, 20), 20, actions)
    running.wait()
    branching, waiting, _ = running.results
    assert waiting.wait().tokens == []
    assert branching.wait().last.branches.lengths.tolist() == [9] * 6


def test_a_stopped_call_returns_its_unfinished_branches(make_harness):
    engine = make_harness()
    given = branch_call([4, 5], 4, 40)
    actions = {
        1: lambda: engine.start(prompt(5, 40), request_id="b", **given),
        6: lambda: engine.engine.stop("b"),
    }
    running = Conducted(engine, prompt(6, 20), 20, actions)
    running.wait()
    found = running.results[0].wait().last.branches
    assert set(found.lengths.tolist()) == {4}  # one step for the draft, four for the branches
    assert len(found.lengths) == 12


def test_branches_use_at_most_half_of_the_tokens_per_step(make_harness):
    engine = make_harness(max_batch_tokens=16)
    found = engine.call(prompt(1, 40), **branch_call([4, 5, 6], 10, 6)).last.branches
    assert len(found.lengths) == 8
    with pytest.raises(RequestError, match=r"branch_counts is 15 \(max_batch_tokens\)"):
        engine.start(prompt(1, 40), **branch_call([5] * 16, 1, 6))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_kv_cache_of_branches_is_freed_after_the_call(make_harness, kind):
    engine = make_harness(kind)
    for seed in range(3):
        engine.call(prompt(seed, 40), **branch_call([4, 5, 6], 3, 6))
    engine.tokens(prompt(9, 9), 2)  # during this call, the engine drops earlier calls
    kinds = {type(thing) for thing in gc.get_objects()}
    assert not any(issubclass(kind, BranchKV) for kind in kinds)
