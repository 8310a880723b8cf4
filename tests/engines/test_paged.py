"""The paged KV cache assigns pages, and paged attention equals unpaged attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_harness import VOCAB, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engines.errors import LoadError
from tandem.engines.torch.attention import Segment
from tandem.engines.torch.contiguous_kv_cache import KVShape
from tandem.engines.torch.paged.attention import PagedStep, attend_gathered, find_fault
from tandem.engines.torch.paged.batch import PagedRow, make_batch
from tandem.engines.torch.paged.page_pool import PADDING, PagePool
from tandem.engines.torch.paged.paged_kv_cache import PagedKVCache

PAGE = 8
SHAPE = KVShape(((2, 4, 4),), torch.float32, torch.device("cpu"))
BLOCKS = 16


def new_cache() -> PagedKVCache:
    return PagedKVCache(SHAPE, BLOCKS * PAGE, PAGE, 64)


def fill(cache, entry, length: int) -> None:
    """Fill the entry up to `length` tokens; keys and values equal the token ids."""
    keys, values = (part.view(-1, 2, 4) for part in cache.pool.layer(0))
    for at in range(entry.length, length):
        slot = entry.pages[at // PAGE] * PAGE + at % PAGE
        keys[slot] = values[slot] = float(entry.tokens[at])
    entry.length = length


def held(cache, pages, length: int) -> list[int]:
    """Return the token ids stored as keys in these pages."""
    keys, values = (part[list(pages)].flatten(0, 1)[:length, 0, 0] for part in cache.pool.layer(0))
    assert torch.equal(keys, values)
    return keys.int().tolist()


def check(cache) -> None:
    """Assert that reference counts are right and every entry holds its own tokens."""
    holders = [page for e in cache._entries for page in [*e.pages, *e.lent_pages]]
    assert PADDING not in holders
    counts = np.bincount(holders, minlength=BLOCKS + 1)
    counts[PADDING] = 1
    assert counts.tolist() == cache.pool._references.tolist()
    assert cache.pool.num_free == (counts == 0).sum()
    for entry in cache._entries:
        assert held(cache, entry.pages, entry.length) == entry.tokens[: entry.length].tolist()


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 12), st.integers(0, 3)),
        max_size=30,
    )
)
def test_pages_are_never_leaked_or_written_by_two_sequences(steps):
    """Texts share prefixes of any length. Calls add branches, reject drafts, or drop entries."""
    cache, running = new_cache(), []
    for seed, length, extra, what in steps:
        start = prompt(7, 40)[: 10 * seed + 5]
        tokens = np.array([*start, *prompt(seed, 52)][: length + extra], np.int64)
        entry = cache.acquire(tokens, length - 1, length + extra)
        check(cache)
        if entry is None:
            lent = cache.needs_lent_blocks(length + extra)
            for call in list(cache._entries) if lent else ():
                if call.lent_pages:
                    running.remove(call)
                    cache.release(call)
            if running:
                cache.release(running.pop(0))
            check(cache)
            continue
        fill(cache, entry, length + extra)
        running.append(entry)
        leaves = np.array([length, length + extra], np.int64)
        if what == 1 and cache.branch_room(2, 3) >= 6:
            branches = cache.branch_kv(entry, leaves, 3)
            for leaf, table in zip(leaves, branches.tables, strict=True):
                assert held(cache, table, leaf) == tokens[:leaf].tolist()
        if what == 2:
            entry.length = length  # as after rejected drafts
        if what == 3:
            cache.drop(running.pop())
        check(cache)


def test_texts_with_a_common_prefix_share_pages():
    cache = new_cache()
    start = prompt(1, 30)
    one, other = (np.array(start + prompt(seed, 10), np.int64) for seed in (2, 3))
    first = cache.acquire(one, 39, 40)
    fill(cache, first, 40)
    second = cache.acquire(other, 39, 40)
    assert second.length == 30
    assert second.pages[:3] == first.pages[:3]
    assert not set(second.pages[3:]) & set(first.pages)
    assert cache.pool.num_free == BLOCKS - (5 + 2)
    fill(cache, second, 40)
    check(cache)


def test_layers_of_different_shapes_are_rejected():
    shape = KVShape(((2, 4, 4), (4, 4, 4)), torch.float32, torch.device("cpu"))
    with pytest.raises(LoadError, match="layers of the same shape"):
        PagePool(shape, 4, PAGE)


def naive(query, keys, values, rows, window):
    """Compute attention one row at a time."""
    out, at = [], 0
    groups = query.shape[1] // keys.shape[2]
    for row in rows:
        own_keys, own_values = (part[list(row.pages)].flatten(0, 1) for part in (keys, values))
        for position in range(row.start, row.start + row.new):
            first = 0 if window is None else max(0, position - window + 1)
            seen = slice(first, position + 1)
            heads = []
            for head in range(query.shape[1]):
                k, v = (part[seen, head // groups] for part in (own_keys, own_values))
                scores = k @ query[at, head] / query.shape[2] ** 0.5
                heads.append(scores.softmax(0) @ v)
            out.append(torch.stack(heads))
            at += 1
    return torch.stack(out)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(
    "rows",
    [
        [PagedRow(0, 1, [3])],
        [PagedRow(13, 1, [3, 7]), PagedRow(4, 1, [2])],
        [PagedRow(13, 3, [3, 7]), PagedRow(4, 3, [2])],
        [PagedRow(17, 2, [3, 7, 1]), PagedRow(0, 5, [2]), PagedRow(8, 1, [6, 5])],
    ],
    ids=["one", "decoding", "even", "ragged"],
)
def test_each_row_attends_only_to_its_own_pages(rows, window):
    pool = PagePool(SHAPE, 8, PAGE)
    generator = torch.Generator().manual_seed(1)
    pool.memory.normal_(generator=generator)
    tokens = sum(row.new for row in rows)
    batch = make_batch(np.arange(tokens), rows, PAGE, torch.device("cpu"))
    query = torch.randn(tokens, 4, 4, generator=generator)
    got = attend_gathered(query, *pool.layer(0), PagedStep(batch, pool, attend_gathered), window)
    torch.testing.assert_close(got, naive(query, *pool.layer(0), rows, window))


def missing(*_):
    raise ImportError("no such attention\nmore about it")


def loses_rows(*given):
    out = attend_gathered(*given)
    out[1:] = 0
    return out


def sees_all(query, keys, values, step, _window):
    return attend_gathered(query, keys, values, step, None)


def nearly_right(*given):
    return attend_gathered(*given) + 1e-4


WRONG = "its output differs by"


@pytest.mark.parametrize(
    ("attention", "windows", "fault"),
    [
        (nearly_right, {None}, None),
        (missing, {None}, "no such attention"),
        (loses_rows, {None}, WRONG),
        (sees_all, {None}, None),
        (sees_all, {4096}, WRONG),
        (sees_all, {None, 2}, WRONG),
        (attend_gathered, {4096}, None),
    ],
)
def test_an_attention_implementation_that_fails_or_is_wrong_is_detected(attention, windows, fault):
    found = find_fault(attention, PagePool(SHAPE, 8, PAGE), 4, windows)
    assert found == fault or ((found or "").startswith(WRONG) and fault == WRONG)


def test_padded_steps_equal_unpadded_steps(make_harness):
    harness = make_harness("paged llama", max_batch_tokens=64)
    model = harness.engine._model
    runner, cache = model._paged, model.cache
    lengths, news = [1, 7, 30, 18], [3, 1, 2, 5]
    entries, ids = [], []
    with torch.inference_mode():
        for seed, (length, new) in enumerate(zip(lengths, news, strict=True)):
            tokens = np.array(prompt(seed, length + new), np.int64)
            entry = cache.acquire(tokens, 0, length + new)
            model.step(tokens[:length], [Segment(entry, length, 0)], [None])
            entry.length = length
            entries.append(entry)
            ids.append(tokens[length:])
        for count in (1, 2, 4):
            some = range(count)
            segments = [Segment(entries[i], news[i], min(news[i], 2)) for i in some]
            logits = runner.logits(np.concatenate([ids[i] for i in some]), segments)
            sizes, runner.buckets = runner.buckets, []
            exact = runner.logits(np.concatenate([ids[i] for i in some]), segments)
            runner.buckets = sizes
            torch.testing.assert_close(logits, exact, atol=1e-4, rtol=1e-4)
        for entry in entries:
            cache.drop(entry)


@pytest.mark.parametrize("name", ["gpt2", "llama-mlp-bias"])
def test_an_unsupported_model_is_rejected(make_harness, name):
    with pytest.raises(LoadError, match=r"^paged_kv_cache requires a Llama, .* no biases in its"):
        make_harness(f"paged {name}")


def test_a_kv_cache_too_small_for_two_sequences_is_rejected(make_harness):
    with pytest.raises(
        LoadError, match=r"^kv_cache_tokens must hold at least two sequences of 12 tokens"
    ):
        make_harness("paged llama", kv_cache_tokens=PAGE)


def test_the_last_tokens_before_max_seq_len_are_computed_exactly(make_harness, llama):
    engine = make_harness("paged llama", max_seq_len=44)
    ids = prompt(5, 38)
    assert engine.tokens(ids, 6) == llama.tokens(ids, 6)
    assert max(ids) < VOCAB
