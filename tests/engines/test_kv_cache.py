"""The KV cache reuses prefixes, evicts old entries, and makes calls wait for free blocks."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from engine_harness import VOCAB, Conducted, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engines.engine import Words
from tandem.engines.errors import RequestError
from tandem.engines.stepping.kv_cache import NO_OWNER, KVCache, KVEntry, Owner
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


@pytest.mark.parametrize("lengths", [(8, 12), (12, 8)])
def test_sequences_with_the_same_text_keep_their_own_entries(lengths):
    cache = TensorKVCache(SHAPE, 8 * BLOCK, BLOCK, 64)
    text = np.array(prompt(6, 12), np.int64)
    entries = {length: cache.acquire(text[:length], 0, length) for length in lengths}
    for length, entry in entries.items():
        entry.length = length
        cache.release(entry)
    assert cache.acquire(text[:9], 8, 9) is entries[8]


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


def test_context_logits_and_log_probs_cover_the_whole_context(make_harness, reference):
    engine = make_harness(max_batch_tokens=9)
    ids = prompt(12, 25)
    engine.tokens(ids)
    outcome = engine.call(ids, 2, return_context_logits=True, return_prompt_log_probs=True)
    with torch.inference_mode():
        want = reference("llama")(torch.tensor([ids])).logits[0]
    np.testing.assert_allclose(outcome.last.context_logits, want, atol=1e-4)
    log_probs = want.log_softmax(-1)[range(24), ids[1:]]
    np.testing.assert_allclose(outcome.last.prompt_log_probs, [0, *log_probs], atol=1e-4)
    assert outcome.last.usage.computed_tokens == 25 + 1
    assert outcome.tokens == engine.tokens(ids, 2)


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


class PlainCache(KVCache):
    """A cache without tensors. made: (source, shared tokens) of new entries. cuts: of reused."""

    def __init__(self, blocks=10):
        super().__init__(blocks * BLOCK + BLOCK - 1, BLOCK)
        self.made, self.cuts = [], []

    def _new_entry(self, source, shared, max_length):
        self.made.append((source, shared))
        return KVEntry()

    def _cut(self, entry, shared, max_length):
        self.cuts.append((entry, shared))

    def branch_kv(self, entry, leaves, tokens):
        raise NotImplementedError

    def start(self, ids, *, reusable=None, room=0, owner=NO_OWNER):
        ids = np.array(ids, np.int64)
        reusable = len(ids) - 1 if reusable is None else reusable
        return self.acquire(ids, reusable, len(ids) + room, owner)

    def keep(self, ids, **given):
        """Start a call and end it with all of its tokens computed."""
        entry = self.start(ids, **given)
        entry.length = len(ids)
        self.release(entry)
        return entry


TEXT = list(range(5 * BLOCK))


def test_a_continued_text_takes_over_its_own_entry():
    cache = PlainCache()
    kept = cache.keep(TEXT[: 2 * BLOCK])
    entry = cache.start([*TEXT[: 2 * BLOCK], 7, 7], room=BLOCK)
    assert entry is kept
    assert cache.cuts == [(kept, 2 * BLOCK)]
    assert (entry.length, entry.reused_blocks, entry.blocks) == (2 * BLOCK, 2, 4)
    assert entry.busy
    assert entry.tokens.tolist() == [*TEXT[: 2 * BLOCK], 7, 7]


@pytest.mark.parametrize(("surplus", "taken"), [(BLOCK, True), (BLOCK + 1, False)])
def test_a_text_that_shares_less_gets_its_own_entry_and_leaves_the_other(surplus, taken):
    cache = PlainCache()
    shared = BLOCK + 2
    kept = cache.keep(TEXT[: shared + surplus])
    entry = cache.start([*TEXT[:shared], -1, -1])
    assert (entry is kept) == taken
    assert cache.made[1:] == [] if taken else [(kept, shared)]
    assert entry.length == shared


def test_only_reusable_tokens_are_reused():
    cache = PlainCache()
    cache.keep(TEXT[:BLOCK])
    assert cache.start(TEXT[:BLOCK]).length == BLOCK - 1  # the last one's logits are needed
    assert cache.start([*TEXT[:1], -1, -1]).length == 1
    assert cache.start(TEXT[:BLOCK], reusable=0).length == 0


@pytest.mark.parametrize("owner", [Owner(1, 0), Owner(0, 1)])
def test_texts_of_different_owners_share_nothing(owner):
    cache = PlainCache(20)
    cache.keep(TEXT, owner=owner)
    assert cache.start(TEXT).length == 0
    assert cache.start(TEXT, owner=owner).length == len(TEXT) - 1


def test_a_running_calls_text_is_copied():
    cache = PlainCache()
    running = cache.start(TEXT[:BLOCK])
    running.length = BLOCK
    entry = cache.start([*TEXT[:BLOCK], 3])
    assert entry is not running
    assert cache.made[-1] == (running, BLOCK)


def test_an_idle_entry_is_preferred_to_a_running_one_of_the_same_text():
    cache = PlainCache()
    cache.keep(TEXT[:BLOCK])
    other = cache.start([9, *TEXT[:BLOCK]])
    other.tokens, other.length = np.array(TEXT[:BLOCK]), BLOCK
    assert cache.start([*TEXT[:BLOCK], 1]) is not other
    assert len(cache.made) == 2


def test_the_oldest_texts_are_evicted_but_only_if_that_suffices():
    cache = PlainCache(blocks=6)
    old, new = cache.keep([1] * 2 * BLOCK), cache.keep([2] * 2 * BLOCK)
    running = cache.start([3] * BLOCK)
    assert cache.start([4] * 6 * BLOCK) is None  # the running call's block is missing
    assert cache._entries == [old, new, running]
    assert cache.start([4] * 2 * BLOCK) is not None
    assert new in cache._entries
    assert old not in cache._entries


def test_an_entry_grows_into_blocks_of_others_but_is_never_evicted_itself():
    cache = PlainCache(blocks=5)
    own, other = cache.keep(TEXT[: 2 * BLOCK]), cache.keep([7] * 3 * BLOCK)
    assert cache.start([*TEXT[: 2 * BLOCK], 1], room=3 * BLOCK - 1) is own
    assert other not in cache._entries
    assert cache.start([8]) is None
    cache.drop(own)
    assert cache.start([8]) is not None


def test_an_ended_call_keeps_blocks_only_for_what_it_computed():
    cache = PlainCache()
    cache.release(cache.start(TEXT))
    assert cache._entries == []
    assert cache.keep(TEXT[:BLOCK], room=3 * BLOCK).blocks == 1


def test_branches_get_free_blocks_and_those_of_stale_texts(monkeypatch):
    cache = PlainCache(blocks=10)
    stale = cache.keep([1] * 3 * BLOCK)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1000)
    recent, running = cache.keep([2] * 3 * BLOCK), cache.start([3] * BLOCK)
    assert cache.branch_room(1, 1) == BLOCK
    assert cache.branch_room(3, BLOCK) == 3 * BLOCK
    assert stale in cache._entries
    assert cache.branch_room(2, 10 * BLOCK) == 6 * BLOCK
    assert cache._entries == [recent, running]


def test_branches_must_end_if_a_call_needs_their_blocks():
    cache = PlainCache(blocks=4)
    cache.keep([7])
    running = cache.start(TEXT[: 2 * BLOCK])
    assert not cache.needs_lent_blocks(4 * BLOCK)
    running.lent_blocks = 1
    assert not cache.needs_lent_blocks(BLOCK)
    assert cache.needs_lent_blocks(BLOCK + 1)
    cache.release(running)
    assert running.lent_blocks == 0


def test_texts_that_differ_before_their_last_tokens_are_compared_in_full():
    entry = KVEntry(np.arange(200), 150)
    other = np.arange(200)
    assert entry.shared_prefix(other) == 150
    other[3] = -1
    assert entry.shared_prefix(other) == 3
    assert entry.may_share(other, 150)  # judged by the last tokens only
    assert not entry.may_share(other, 151)
    other[149] = -1
    assert not entry.may_share(other, 150)
    assert entry.may_share(other, 149)
    assert not entry.may_share(other[:100], 101)
