"""Requests copy only from answers in their own pool, and pools stay within size limits."""

import tracemalloc
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.lookup import pools as module
from tandem.lookup.pools import (
    MAX_MATCH,
    MAX_OCCURRENCES,
    MAX_REQUEUED_TOKENS,
    MAX_TOKENS,
    MIN_ANSWER_TOKENS,
    MIN_MATCH,
    REQUEUE_COST,
    LookupPools,
)


def pools_of(*answers, name="ours", max_tokens=100_000):
    pools = LookupPools(max_tokens)
    for answer in answers:
        pools.add(name, answer)
    return pools


ANSWER = [10, 11, 12, 13, 14, 15, 16]


def test_the_number_of_compared_occurrences_is_limited():
    newer = [[100 + at, 1, 2, 3, 4] for at in range(MAX_OCCURRENCES - 1)]
    assert pools_of([9, 1, 2, 3, 50], *newer).lookup("ours", [9, 1, 2, 3], 1) == ([50], 4)
    newer.append([99, 1, 2, 3, 4])
    assert pools_of([9, 1, 2, 3, 50], *newer).lookup("ours", [9, 1, 2, 3], 1) == ([4], 3)


def test_any_token_id_can_be_looked_up():
    answer = [2**31 - 1, 0, 2**31 - 2, 5, 0, 0, 0, 6]
    pools = pools_of(np.array(answer, np.int32))
    for end in range(3, len(answer)):
        assert pools.lookup("ours", answer[:end], 1) == ([answer[end]], end)


def test_a_stored_answer_does_not_share_memory_with_the_callers_array():
    row = np.array(ANSWER, np.int32)
    pools = pools_of(row)
    row[:] = 0
    assert pools.lookup("ours", ANSWER[:3], 9) == (ANSWER[3:], 3)


def test_a_pool_is_found_only_by_its_exact_name():
    pools = LookupPools(100_000)
    names = ["", " ", "our", "ours", "ours ", "OURS", "é", "e\u0301", "\0", "名"]
    names += ["\U0001f600" * 64, "x" * 100_000]
    for at, name in enumerate(names):
        pools.add(name, [1, 2, 3, at])
    for at, name in enumerate(names):
        assert pools.lookup(name, [1, 2, 3], 1) == ([at], 3)


@pytest.mark.parametrize("max_tokens", [0, -1, MAX_TOKENS + 1])
def test_an_invalid_size_limit_is_rejected(max_tokens):
    with pytest.raises(ValueError, match=rf"must be between 1 and .*; got {max_tokens}$"):
        LookupPools(max_tokens)


def test_pools_are_listed_by_size_without_their_names():
    pools = pools_of(ANSWER, ANSWER, name="ours")
    pools.add("theirs", range(100))
    (largest, other) = pools.sizes()
    assert (largest.outputs, largest.tokens) == (1, 100)
    assert (other.outputs, other.tokens) == (2, 2 * len(ANSWER))
    assert len({largest.id, other.id, "ours", "theirs"}) == 4


def test_an_emptied_pool_finds_nothing_and_frees_its_space():
    pools = pools_of(ANSWER, name="ours")
    pools.add("theirs", ANSWER)
    (ours, _) = pools.sizes()
    assert pools.clear(ours.id) == [ours]
    assert pools.clear(ours.id) == pools.clear("ours") == []
    assert [bool(pools.lookup(name, ANSWER[:3], 9)) for name in ("ours", "theirs")] == [False, True]
    assert len(pools.clear()) == 1
    assert (pools.sizes(), pools.num_tokens) == ([], 0)
    pools.add("ours", ANSWER)
    assert pools.lookup("ours", ANSWER[:3], 9) == (ANSWER[3:], 3)


# With few different tokens, most n-grams occur in several pools.
NAMES = ("a", "b", "c")
answers = st.one_of(
    st.lists(st.integers(0, 2), max_size=100), st.lists(st.integers(0, 1), min_size=10, max_size=70)
)
operations = st.lists(
    st.tuples(st.sampled_from(("join", "lookup", "clear")), st.sampled_from(NAMES), answers),
    max_size=40,
)
bounds = st.sampled_from([1, 63, 64, 100, 128, 200, 1000])


class Model:
    """A simple model of pools: a list of answers, oldest first."""

    def __init__(self, max_tokens):
        self.max_tokens = max_tokens
        self.line = []  # pool name, answer, number of pool uses at the time of joining
        self.last_use = {}
        self.uses = 0

    @property
    def num_tokens(self):
        return sum(max(len(answer), MIN_ANSWER_TOKENS) for _, answer, _ in self.line)

    def has(self, name):
        return name in {other for other, _, _ in self.line}

    def add(self, name, answer):
        size = max(len(answer), MIN_ANSWER_TOKENS)
        if len(answer) <= MIN_MATCH or size > self.max_tokens:
            return
        left = MAX_REQUEUED_TOKENS
        while self.num_tokens + size > self.max_tokens:
            theirs, oldest, joined = self.line.pop(0)
            cost = REQUEUE_COST + len(oldest)
            if theirs != name and self.last_use[theirs] > joined and cost <= left:
                left -= cost
                self.line.append((theirs, oldest, self.uses))
        self.use(name)
        self.line.append((name, answer, self.uses))

    def use(self, name):
        self.uses += 1
        self.last_use[name] = self.uses

    def best(self, name, tail, limit):
        """Return the longest match; among equally long matches, the newest."""
        best = (None, MIN_MATCH - 1)
        for answer in [answer for theirs, answer, _ in reversed(self.line) if theirs == name]:
            for end in range(len(answer) - 1, MIN_MATCH - 1, -1):
                longest = min(end, len(tail), MAX_MATCH)
                sizes = [n for n in range(1, longest + 1) if answer[end - n : end] == tail[-n:]]
                if sizes and max(sizes) > best[1]:
                    best = (answer[end : end + limit], max(sizes))
        return None if best[0] is None else best


def sizes(pools):
    """Return the number of answers per pool, as reported by the pools."""
    return {key: pool.num_answers for key, pool in pools._pools.items()}


def made(max_tokens, crowded):
    """Return pools. crowded: use only two hash slots for all tokens of all pools."""
    pools = LookupPools(max_tokens)
    if crowded:
        pools._shift = 63
    return pools


@settings(max_examples=150)
@given(bounds, st.booleans(), operations, st.integers(1, 6))
def test_pools_equal_a_simple_model_after_any_operations(max_tokens, crowded, operations, limit):
    pools, model, cleared = made(max_tokens, crowded), Model(max_tokens), False
    with patch.object(module, "MAX_OCCURRENCES", 10**6):
        for what, name, tokens in operations:
            if what == "join":
                pools.add(name, tokens)
                model.add(name, tokens)
            elif what == "clear" and len(tokens) < 10:  # rarely
                pools.clear(module._id(pools._key(name)))
                model.line = [answer for answer in model.line if answer[0] != name]
                cleared = True
            else:
                found, best = pools.lookup(name, tokens, limit), model.best(name, tokens, limit)
                # A cleared pool's answers may hide older ones at a slot that pools share.
                assert found == best or (cleared and (found is None or found[1] <= best[1]))
                if len(tokens) >= MIN_MATCH and model.has(name):
                    model.use(name)
            assert pools.num_tokens == model.num_tokens <= max_tokens
            held = [(answer.pool, list(answer.tokens)) for answer in pools._answers.values()]
            assert held == [(pools._key(name), answer) for name, answer, _ in model.line]
            assert sizes(pools) == dict(Counter(key for key, _ in held))


@given(bounds, st.booleans(), operations, st.integers(1, 6))
def test_a_copy_always_comes_from_its_own_pool(max_tokens, crowded, operations, limit):
    """This test keeps the default limit of compared occurrences."""
    pools, joined = made(max_tokens, crowded), {name: [] for name in NAMES}
    for what, name, tokens in operations:
        if what == "join":
            pools.add(name, tokens)
            joined[name].append(tokens)
        elif what == "clear":
            pools.clear(module._id(pools._key(name)))
            joined[name].clear()
        elif match := pools.lookup(name, tokens, limit):
            size = match.ngram_size
            assert MIN_MATCH <= size <= min(len(tokens), MAX_MATCH)
            assert 1 <= len(match.tokens) <= limit
            assert any(
                answer[end - size : end] == tokens[-size:]
                and answer[end : end + limit] == match.tokens
                for answer in joined[name]
                for end in range(size, len(answer))
            )


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_too_long_to_move_is_dropped(more):
    long = range(MAX_REQUEUED_TOKENS - REQUEUE_COST + more)
    pools = pools_of(long, max_tokens=len(long) + MIN_ANSWER_TOKENS)
    pools.add("theirs", ANSWER)
    assert pools.lookup("ours", [0, 1, 2], 1)
    pools.add("others", ANSWER)
    assert bool(pools.lookup("ours", [0, 1, 2], 1)) == (not more)


BYTES_A_TOKEN = 45  # the documented limit (docs/concepts/lookup-pools.md)


@pytest.mark.parametrize(("length", "names"), [(4, 10**9), (4, 1), (65, 1), (4096, 10**9)])
def test_memory_of_pools_is_limited(length, names):
    """The limit holds for short and long answers, in one pool or in many pools."""
    max_tokens = 2**15
    tokens = np.arange(length, dtype=np.int32)
    tracemalloc.start()
    try:
        pools = LookupPools(max_tokens)
        for at in range(3 * max_tokens // max(length, MIN_ANSWER_TOKENS)):
            pools.add(f"{at % names} " + "\U0001f600" * 63, tokens + at * 1000)
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pools.num_tokens > max_tokens - max(length, MIN_ANSWER_TOKENS)
    assert size <= BYTES_A_TOKEN * max_tokens
    assert peak <= BYTES_A_TOKEN * max_tokens + 200 * length  # while an answer joins


class Touches(int):
    """A token that counts how often it is compared."""

    count = 0
    __hash__ = int.__hash__

    def __eq__(self, other):
        Touches.count += 1
        return int.__eq__(self, other)


@pytest.mark.parametrize("num_answers", [10, 1000])
def test_lookup_time_does_not_depend_on_the_pool_size(num_answers):
    """The test counts comparisons instead of measuring time."""
    pools = pools_of(*[[7] * 40] * num_answers)
    Touches.count = 0
    assert pools.lookup("ours", [Touches(7)] * 40, 4)
    assert Touches.count <= MAX_OCCURRENCES * MAX_MATCH
