"""Word lists in NVIDIA's layout are joined and reduced to words that an engine knows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.bls.triton.engine_tensors import drop_unknown, join_tables

lists_of_words = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=5)


def table_of(words, padding=0):
    """Return a word list in the layout of preprocessing: ids padded with 0, offsets with -1."""
    ids = [token for word in words for token in word]
    table = np.zeros((2, max(1, len(ids)) + padding), np.int32)
    table[1] = -1
    table[0, : len(ids)] = ids
    table[1, : len(words)] = np.cumsum([len(word) for word in words])
    return table


def words_of(table):
    if table is None:
        return []
    assert (table.dtype, len(table)) == (np.int32, 2)
    ends = [end for end in table[1].tolist() if end >= 0]
    assert table[1].tolist() == ends + [-1] * (table.shape[1] - len(ends))
    starts = [0, *ends][: len(ends)]
    return [table[0, start:end].tolist() for start, end in zip(starts, ends, strict=True)]


@given(lists_of_words, lists_of_words, st.integers(0, 2))
def test_joined_word_lists_contain_the_words_of_both(first, second, padding):
    tables = table_of(first, padding), table_of(second, padding)
    assert words_of(join_tables(*tables)) == first + second


@given(lists_of_words, st.integers(0, 10), st.integers(0, 2))
def test_words_with_ids_outside_the_vocabulary_are_dropped(words, vocab_size, padding):
    left = [word for word in words if all(token < vocab_size for token in word)]
    assert words_of(drop_unknown(table_of(words, padding), vocab_size)) == left
    assert (drop_unknown(table_of(words, padding), vocab_size) is None) == (left == [])
