"""The emulated KV cache reuses the same prefixes as a search of all cached sequences."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.engines.emulated.engine import PrefixCache

BLOCK = 4
texts = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def ids(text):
    return np.array(text, np.int32)


def shared(one, other):
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_each_kv_cache_entry_is_continued_by_only_one_call():
    cache = PrefixCache(max_tokens=100, block_tokens=BLOCK)
    for _ in range(2):
        cache.remember(ids([1, 2, 3]))
    reused = [cache.reuse(ids([1, 2, 3, 4]), 3) for _ in range(3)]
    assert reused == [3, 3, 0]


def test_a_call_that_shares_a_prefix_keeps_the_longer_entry():
    cache = PrefixCache(max_tokens=100, block_tokens=BLOCK)
    cache.remember(ids(range(20)))
    assert [cache.reuse(ids([0, 1, 2, 9]), 4) for _ in range(2)] == [3, 3]


def test_the_least_recently_used_entry_is_evicted_first():
    cache = PrefixCache(max_tokens=3 * BLOCK, block_tokens=BLOCK)
    for first in (1, 2, 3, 1, 4):
        cache.remember(ids([first] * BLOCK))
    found = [cache.reuse(ids([first] * BLOCK), BLOCK) for first in (1, 2, 3, 4)]
    assert found == [BLOCK, 0, 0, BLOCK]


@given(st.lists(texts, max_size=20), texts)
def test_the_longest_shared_prefix_is_reused(remembered, wanted):
    cache = PrefixCache(max_tokens=10_000, block_tokens=BLOCK)
    for text in remembered:
        cache.remember(ids(text))
    best = max((shared(text, wanted) for text in remembered), default=0)
    assert cache.reuse(ids(wanted), len(wanted)) == best
