"""Word lists find the same bad words and stop words as a search for each word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engines.constraints import Bans, Cut, cut
from tandem.engines.engine import NO_WORDS, EngineRequest, SamplingParams, Words

words = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8)
texts = st.lists(st.integers(0, 3), max_size=12)


def request(limit=10, context=(5,), min_tokens=0, bad_words=NO_WORDS, **given) -> EngineRequest:
    sampling = SamplingParams(min_tokens=min_tokens, bad_words=bad_words)
    return EngineRequest("r", np.array(context, np.int32), limit, sampling=sampling, **given)


def test_a_word_list_contains_its_words():
    listed = Words.of((7, 8), (), (9,), (9,), (3, 4, 5))
    assert (len(listed), listed.longest) == (4, 3)
    assert listed.singles.tolist() == [9]
    assert listed.single_ids == {9}
    assert (len(NO_WORDS), NO_WORDS.longest, bool(NO_WORDS)) == (0, 0, False)


@given(words, texts)
def test_the_token_that_would_complete_a_word_is_found(listed, text):
    found = Words.of(*listed).next_after(np.array(text, np.int64))
    expected = [
        word[-1]
        for word in listed
        if len(word) > 1 and len(word) - 1 <= len(text) and text[1 - len(word) :] == word[:-1]
    ]
    assert sorted(found.tolist()) == sorted(expected)


@given(words, texts, texts, st.integers(0, 6))
def test_the_end_of_the_first_complete_word_is_found(listed, before, new, skip):
    text = before + new
    ends = [
        i
        for i in range(skip, len(new))
        for word in listed
        if word and text[: len(before) + i + 1][-len(word) :] == word
    ]
    assert Words.of(*listed).first_end(before, new, skip) == min(ends, default=None)


@pytest.mark.parametrize(
    ("given", "before", "tokens", "expected"),
    [
        ({}, [], [1, 2, 3], Cut([1, 2, 3], ended=False, surplus=0)),
        ({"limit": 4}, [9, 9], [1, 2, 3], Cut([1, 2], ended=False, surplus=1)),
        ({"end_id": 2}, [], [1, 2, 3, 4], Cut([1], ended=True, surplus=2)),
        ({"end_id": 1}, [], [1], Cut([], ended=True, surplus=0)),
        ({"end_id": 3, "limit": 2}, [], [1, 2, 3], Cut([1, 2], ended=False, surplus=1)),
        ({"stop_words": Words.of((2,))}, [], [1, 2, 3, 4], Cut([1, 2], ended=True, surplus=2)),
        ({"stop_words": Words.of((8, 1))}, [8], [1, 2], Cut([1], ended=True, surplus=1)),
        ({"stop_words": Words.of((2,)), "end_id": 3}, [], [2, 3], Cut([2], True, 1)),
        ({"stop_words": Words.of((3,)), "end_id": 2}, [], [2, 3], Cut([], True, 1)),
        ({"stop_words": Words.of((2,)), "end_id": 2}, [], [1, 2], Cut([1], True, 0)),
        ({"stop_words": Words.of((2,)), "min_tokens": 2}, [], [2, 2, 2, 2], Cut([2] * 3, True, 1)),
        ({"stop_words": Words.of((2,)), "min_tokens": 2}, [2, 2], [2, 5], Cut([2], True, 1)),
    ],
)
def test_output_is_cut_at_its_first_end_id_or_stop_word(given, before, tokens, expected):
    assert cut(request(**given), before, tokens) == expected


def test_bans_include_bad_words_and_ends_before_min_tokens():
    asked = request(
        context=(5, 6),
        min_tokens=2,
        bad_words=Words.of((4,), (6, 7)),
        end_id=1,
        stop_words=Words.of((2,), (3, 3), (99,), (-1,)),
    )
    bans = Bans(asked, 50)
    assert bans
    assert sorted(bans.after(np.array([5, 6])).tolist()) == [1, 2, 4, 7]
    assert sorted(bans.after(np.array([5, 6, 8])).tolist()) == [1, 2, 4]
    assert sorted(bans.after(np.array([5, 6, 8, 6])).tolist()) == [4, 7]
    assert sorted(bans.after(np.array([5, 6, 8, 6, 8])).tolist()) == [4]
