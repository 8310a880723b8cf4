"""Prompt lookup copies the tokens after the longest matching n-gram."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.lookup.ngrams import MAX_MATCH, copy_like_match, look_up


def found(tokens, limit, ngram=2):
    return look_up(np.array(tokens, np.int32), limit, max_ngram_size=ngram)


def test_the_documented_example_gives_the_documented_result():
    """The context ends with t3, t4. After their earlier occurrence, t5 to t8 follow."""
    t1, t2, t3, t4, t5, t6, t7, t8, t9 = range(1, 10)
    pool = [t3, t4, t5, t6, t7, t8, t9]
    assert found([*pool, t1, t2, t3, t4], 4) == ([t5, t6, t7, t8], 2)


OCCURRENCES = [1, 2, 10, 11, 12, 1, 2, 20, 21, 22, 1, 2, 30, 1, 2]


@pytest.mark.parametrize(
    ("limit", "draft"),
    [
        (3, [30, 1, 2]),
        (4, [20, 21, 22, 1]),  # only 3 tokens follow the newest occurrence
        (99, [10, 11, 12, 1, 2, 20, 21, 22, 1, 2, 30, 1, 2]),
    ],
)
def test_the_newest_occurrence_before_a_whole_draft_is_copied(limit, draft):
    assert found(OCCURRENCES, limit).tokens == draft


# Sequences that repeat parts of a text of up to 8 tokens
repeated = st.lists(st.integers(0, 3), min_size=1, max_size=8).flatmap(
    lambda text: st.lists(
        st.tuples(st.integers(0, len(text) - 1), st.integers(1, 8)), max_size=9
    ).map(lambda cuts: [token for at, size in cuts for token in text[at : at + size]])
)


@settings(max_examples=250)
@given(repeated, st.integers(1, 6), st.integers(1, 6))
def test_the_longest_ngram_that_occurred_before_is_continued(row, ngram, limit):
    match = found(row, limit, ngram)
    for size in range(min(ngram, len(row) - 1), 0, -1):
        ends = [at for at in range(size, len(row)) if row[at - size : at] == row[-size:]]
        if not ends:
            continue
        whole = [at for at in ends if len(row) - at >= limit]
        start = whole[-1] if whole else ends[0]
        assert match.tokens == row[start : start + limit]
        assert match.ngram_size >= size
        return
    assert match is None


@given(repeated, st.integers(1, 6))
def test_matching_tokens_beyond_the_ngram_are_counted(row, ngram):
    match = found(row, len(row), ngram)
    if match is not None:
        start = len(row) - len(match.tokens)
        sizes = [n for n in range(1, start + 1) if row[start - n : start] == row[-n:]]
        assert match.ngram_size == min(MAX_MATCH, max(sizes))


@pytest.mark.parametrize(
    ("tokens", "draft"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], [4, 5, 6]),
        ([9, 2, 3, 4, 1, 2], []),  # a single token matches
        ([1, 2, 1, 2, 1, 2], [1, 2]),
        ([], []),
    ],
)
def test_a_copy_is_as_long_as_the_text_that_matches(tokens, draft):
    assert copy_like_match(np.array(tokens, np.int32), 16) == draft
    assert copy_like_match(np.array(tokens, np.int32), 1) == draft[:1]
