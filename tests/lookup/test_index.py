"""Prompt lookup copies the tokens after the longest matching n-gram, in constant time per token."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.lookup.index import NgramIndex


def index_of(tokens, ngram=2, **switches):
    index = NgramIndex(ngram, **switches)
    index.extend(tokens)
    return index


def test_the_documented_example_gives_the_documented_result():
    """The context ends with t3, t4. After their earlier occurrence, t5 to t8 follow."""
    t1, t2, t3, t4, t5, t6, t7, t8, t9 = range(1, 10)
    pool = [t3, t4, t5, t6, t7, t8, t9]
    assert index_of([*pool, t1, t2, t3, t4]).lookup(4) == ([t5, t6, t7, t8], 2)


def test_a_copy_at_the_end_can_be_shorter_than_the_limit():
    assert index_of([3, 4, 9, 3, 4], ngram=2).lookup(4) == ([9, 3, 4], 2)


def test_a_shorter_ngram_is_tried_if_the_longest_has_no_match():
    assert index_of([4, 9, 3, 4], ngram=2).lookup(2) == ([9, 3], 1)


def test_an_ngram_without_a_match_gives_no_copy():
    assert index_of([1, 2, 3]).lookup(4) is None
    assert index_of([]).lookup(4) is None
    assert index_of([1]).lookup(4) is None


OCCURRENCES = [1, 2, 10, 11, 12, 1, 2, 20, 21, 22, 1, 2, 30, 1, 2]


@pytest.mark.parametrize(
    ("switches", "limit", "draft"),
    [
        ({}, 4, [10, 11, 12, 1]),
        ({"keep_all": False}, 4, [10, 11, 12, 1]),
        ({"use_oldest": False}, 4, [20, 21, 22, 1]),  # the newest with 4 tokens after it
        ({"use_oldest": False}, 3, [30, 1, 2]),
        ({"use_oldest": False, "keep_all": False}, 4, [30, 1, 2]),
    ],
)
def test_keep_all_and_use_oldest_choose_the_documented_occurrence(switches, limit, draft):
    assert index_of(OCCURRENCES, **switches).lookup(limit).tokens == draft


rows = st.lists(st.integers(0, 3), max_size=60)
# Sequences that repeat parts of a text of up to 8 tokens
repeated = st.lists(st.integers(0, 3), min_size=1, max_size=8).flatmap(
    lambda text: st.lists(
        st.tuples(st.integers(0, len(text) - 1), st.integers(1, 8)), max_size=9
    ).map(lambda cuts: [token for at, size in cuts for token in text[at : at + size]])
)


@settings(max_examples=250)
@given(repeated, st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans())
def test_keep_all_and_use_oldest_choose_the_copy(row, ngram, limit, keep_all, use_oldest):
    match = index_of(row, ngram, keep_all=keep_all, use_oldest=use_oldest).lookup(limit)
    for size in range(min(ngram, len(row) - 1), 0, -1):
        ends = [at for at in range(size, len(row)) if row[at - size : at] == row[-size:]]
        if not ends:
            continue
        whole = [at for at in ends if len(row) - at >= limit]
        if use_oldest:
            start = ends[0]
        elif keep_all:
            start = whole[-1] if whole else ends[0]
        else:
            start = ends[-1]
        assert match == (row[start : start + limit], size)
        return
    assert match is None


class Counted(dict):
    """A dict that counts lookups."""

    count = 0

    def get(self, key):
        self.count += 1
        return super().get(key)


@pytest.mark.parametrize("ngram", [2, 16])
def test_each_new_token_costs_at_most_one_step(ngram):
    index = NgramIndex(ngram)
    nodes = index._nodes = Counted()
    index.extend(range(10_000))
    assert nodes.count <= 10_000
    assert len(nodes) <= 10_000


def test_extending_a_known_sequence_needs_no_steps():
    index = NgramIndex(16)
    index.extend([*range(1_000)] * 2)
    nodes = index._nodes = Counted(index._nodes)
    index.extend([*range(1_000)] * 10)
    assert nodes.count <= 2 * 16


@given(repeated, st.integers(1, 6), st.integers(0, 9), st.booleans(), st.booleans())
def test_matching_tokens_beyond_the_ngram_are_counted(row, ngram, most, keep_all, use_oldest):
    index = index_of(row, ngram, keep_all=keep_all, use_oldest=use_oldest)
    match, counted = index.lookup(len(row)), index.lookup(len(row), most)
    if match is None:
        assert counted is None
        return
    assert counted.tokens == match.tokens
    start = len(row) - len(match.tokens)
    sizes = [n for n in range(1, start + 1) if row[start - n : start] == row[-n:]]
    assert counted.ngram_size == max(match.ngram_size, min(most, max(sizes)))


@given(st.lists(rows, max_size=6), st.integers(1, 4))
def test_extending_an_index_in_parts_gives_the_same_lookups(pieces, ngram):
    grown = NgramIndex(ngram)
    for piece in pieces:
        grown.extend(piece)
    assert grown.lookup(4) == index_of(
        [token for piece in pieces for token in piece], ngram
    ).lookup(4)


class Touches(int):
    """A token that counts how often it is compared or hashed."""

    count = 0

    def __hash__(self):
        Touches.count += 1
        return int.__hash__(self)

    def __eq__(self, other):
        Touches.count += 1
        return int.__eq__(self, other)


@pytest.mark.parametrize("length", [1_000, 100_000])
def test_the_time_per_token_does_not_depend_on_the_context(length):
    """The test counts comparisons and hashes of tokens instead of measuring time."""
    Touches.count = 0
    index = index_of([Touches(at * 7919 % 3000) for at in range(length)], ngram=4)
    index.lookup(10)
    assert Touches.count <= 12 * length


def test_memory_grows_linearly_with_tokens():
    def size(length):
        index = index_of([at * 7919 % 3001 for at in range(length)], ngram=2)
        return sum(sys.getsizeof(part) for part in vars(index).values())

    assert size(40_000) <= 4.5 * size(10_000)
