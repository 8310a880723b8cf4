"""The KV cache reuses prefixes, evicts old entries, and makes calls wait for free blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_harness import VOCAB, Conducted, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engines.engine import Words
from tandem.engines.errors import RequestError
from tandem.engines.torch.attention import KVShape, TensorKVCache

BLOCK = 8
SHAPE = KVShape(((2, 4, 4),), torch.float32, torch.device("cpu"))


def test_a_shared_prefix_is_reused_and_both_entries_are_kept(make_harness):
    engine = make_harness()
    start = prompt(3, 40)
    one, other = start + prompt(4, 30), start + prompt(5, 30)
    engine.tokens(one)
    assert engine.computed(other) == 30
    assert engine.computed(one) == 1
    assert engine.computed(other) == 1


def test_sequences_with_the_same_text_keep_their_own_entries():
    cache = TensorKVCache(SHAPE, 8 * BLOCK, BLOCK, 64)
    text = np.array(prompt(6, 12), np.int64)
    behind, ahead = [cache.acquire(text[:length], 0, length) for length in (8, 12)]
    for entry, length in ((behind, 8), (ahead, 12)):
        entry.length = length
        cache.release(entry)
    assert cache.acquire(text[:9], 8, 9) is behind


def test_the_prefix_of_a_running_call_is_reused(make_harness):
    engine = make_harness()
    ids = prompt(6, 40)
    running = Conducted(engine, ids, 9, {1: lambda: engine.start([*ids, 7, 8, 9], 2)})
    assert len(running.wait().tokens) == 9
    assert running.results[0].wait().last.usage.computed_tokens == 3 + 1


def test_the_least_recently_used_entry_is_evicted_at_the_limit(make_harness):
    engine = make_harness(kv_cache_tokens=12 * BLOCK)
    old, recent, third = (prompt(seed, 4 * BLOCK) for seed in (8, 9, 10))
    for ids in (old, recent, third):  # 4 blocks each
        engine.tokens(ids)
    engine.tokens(old)  # `recent` is then the least recently used
    engine.tokens(prompt(11, 2 * BLOCK))
    assert engine.computed(old) == 1
    assert engine.computed(third) == 1
    assert engine.computed(recent) == 4 * BLOCK


def test_a_call_that_ends_early_gives_back_the_blocks_that_it_did_not_fill(make_harness):
    engine = make_harness(kv_cache_tokens=12 * BLOCK)
    any_token = Words.of(*[(token,) for token in range(VOCAB)])
    texts = [prompt(seed, 2 * BLOCK) for seed in (20, 21, 22)]
    for ids in texts:  # up to 5 blocks each
        assert len(engine.tokens(ids, 3 * BLOCK, stop_words=any_token)) == 1
    assert [engine.computed(ids) for ids in texts] == [1, 1, 1]


def test_calls_wait_for_free_blocks_in_order_of_arrival(make_harness):
    engine = make_harness(kv_cache_tokens=10 * BLOCK)
    lengths = [30, 20, 3, 1]  # new tokens; no two of these calls fit at the same time
    calls = [engine.start(prompt(30 + new, 40), new) for new in lengths]
    outcomes = [pending.wait() for pending in calls]
    assert [len(outcome.tokens) for outcome in outcomes] == lengths
    ends = [outcome.last.usage.last_token_time_ns for outcome in outcomes]
    starts = [outcome.last.usage.first_scheduled_time_ns for outcome in outcomes]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_a_call_larger_than_the_cache_is_rejected_with_the_sizes(make_harness):
    engine = make_harness(kv_cache_tokens=4 * BLOCK)
    with pytest.raises(RequestError, match=r"30 tokens.*20.*7 KV blocks.*limit is 4"):
        engine.call(prompt(1, 30), 20)


def test_keys_and_values_of_a_rejected_draft_token_are_not_reused(make_harness):
    engine, ids = make_harness(), prompt(13, 20)
    [token] = engine.tokens(ids)
    assert engine.tokens(ids, 2, drafts=[token + 1]) == [token]
    following = [*ids, token, 7]
    reused, fresh = (
        each.call(following, return_generation_logits=True).last.generation_logits
        for each in (engine, make_harness())
    )
    np.testing.assert_allclose(reused, fresh, atol=1e-4)


def test_context_logits_cover_the_whole_context(make_harness, reference):
    engine = make_harness(max_batch_tokens=9)
    ids = prompt(12, 25)
    engine.tokens(ids)
    outcome = engine.call(ids, 2, return_context_logits=True)
    with torch.inference_mode():
        want = reference("llama")(torch.tensor([ids])).logits[0]
    np.testing.assert_allclose(outcome.last.context_logits, want, atol=1e-4)
    assert outcome.last.usage.computed_tokens == 25 + 1


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 12), st.booleans()),
        max_size=30,
    )
)
def test_the_cache_stays_within_its_limit_and_keeps_correct_values(steps):
    """All entries, including entries of running calls, have the values of their own tokens."""
    cache = TensorKVCache(SHAPE, 8 * BLOCK, BLOCK, 64)
    running = []
    for seed, length, extra, finish in steps:
        tokens = np.array(prompt(seed, length + extra), np.int64)
        entry = cache.acquire(tokens, length - 1, length + extra)
        assert sum(held.blocks for held in cache._entries) <= cache.total_blocks
        if entry is not None:
            assert entry.length <= length - 1
            fill(entry, length + extra)
            running.append(entry)
        for held in running:
            check(held)
        for idle in set(cache._entries) - set(running):
            check(idle)
            assert idle.capacity <= 2 * idle.blocks * BLOCK
        if running and (finish or entry is None):
            cache.release(running.pop(0))


NO_MEMORY = RuntimeError("not enough memory: you tried to allocate 1 byte")


def no_memory(*_):
    raise NO_MEMORY


def test_running_out_of_memory_fails_only_one_call(make_harness, monkeypatch):
    engine = make_harness()
    running = engine.start(prompt(1, 9), 40, streaming=True, request_id="running")
    first = running.next().tokens
    with monkeypatch.context() as full:
        full.setattr(KVShape, "allocate", no_memory)
        rejected = engine.start(prompt(2, 9), 4).wait()
        assert rejected.error == f"the engine can't allocate its KV cache: {NO_MEMORY}"
    assert [*first, *running.wait().tokens] == engine.tokens(prompt(1, 9), 40)
    assert len(engine.tokens(prompt(2, 9), 4)) == 4


def test_an_error_while_stopping_a_call_fails_no_other_call(make_harness, monkeypatch):
    """If the error ended the engine's only thread, later calls would hang."""
    engine = make_harness()
    with monkeypatch.context() as broken:
        broken.setattr(TensorKVCache, "release", no_memory)
        stopped = Conducted(engine, prompt(1, 9), 9, {1: lambda: engine.engine.stop("s")})
        assert stopped.wait().error == f"the engine failed to end the call: {NO_MEMORY}"
    assert len(engine.tokens(prompt(1, 9), 4)) == 4


def fill(entry, length: int) -> None:
    """Fill the entry up to `length` tokens; keys and values equal the token ids."""
    for tensor in entry.layers[0]:
        tensor[:, entry.length : length] = torch.from_numpy(
            entry.tokens[entry.length : length]
        ).float()[None, :, None]
    entry.length = length


def check(entry) -> None:
    want = torch.from_numpy(entry.tokens[: entry.length]).float()
    for tensor in entry.layers[0]:
        assert torch.equal(tensor[0, : entry.length, 0], want)
