"""What a call asks for: where its answer ends, what is banned, and how tokens are chosen."""

import numpy as np
import pytest

from tandem.contract import engine as tensors
from tandem.engines.constraints import Bans, Cut, TokenMasks, cut, ending_ids
from tandem.engines.engine import EngineRequest, SamplingParams, Words
from tandem.sampling.params import NUMBERS, Bounds, SamplingNumbers

VOCAB = 40


def request(**given):
    ids = np.array([5, 6, 7], np.int32)
    return EngineRequest(**{"request_id": "r", "input_ids": ids, "max_new_tokens": 8} | given)


@pytest.mark.parametrize(
    ("given", "before", "tokens", "expected"),
    [
        ({}, [], [1, 2, 3], Cut([1, 2, 3], False, 0)),
        ({"max_new_tokens": 4}, [1, 2], [3, 4, 5], Cut([3, 4], False, 1)),
        ({"end_id": 9}, [], [1, 9, 2], Cut([1], True, 1)),
        ({"end_id": 9}, [], [1, 2, 9], Cut([1, 2], True, 0)),
        ({"end_id": 9, "max_new_tokens": 1}, [], [1, 9], Cut([1], False, 1)),
        ({"stop_words": Words.of((8,))}, [], [1, 8, 2], Cut([1, 8], True, 1)),
        ({"stop_words": Words.of((1, 8))}, [1], [8, 2], Cut([8], True, 1)),
        ({"stop_words": Words.of((8,)), "end_id": 9}, [], [8, 9], Cut([8], True, 1)),
        ({"stop_words": Words.of((8,)), "end_id": 9}, [], [9, 8], Cut([], True, 1)),
        ({"stop_words": Words.of((8,))}, [], [1, 2], Cut([1, 2], False, 0)),
    ],
)
def test_an_answer_is_cut_at_its_first_end(given, before, tokens, expected):
    assert cut(request(**given), before, tokens) == expected


@pytest.mark.parametrize(
    ("before", "kept"), [([], [8] * 4), ([1], [8] * 3), ([1, 1], [8] * 2), ([1] * 4, [8])]
)
def test_stop_words_end_an_answer_only_after_min_tokens(before, kept):
    owing = request(stop_words=Words.of((8,)), sampling=SamplingParams(min_tokens=3))
    assert cut(owing, before, [8, 8, 8, 8]).tokens == kept


def test_all_single_tokens_that_end_an_answer_are_known():
    ends = request(end_id=9, stop_words=Words.of((0,), (3, 4), (VOCAB - 1,), (VOCAB,), (-1,)))
    assert sorted(ending_ids(ends, VOCAB)) == [0, 9, VOCAB - 1]
    assert sorted(ending_ids(ends._replace(end_id=None), VOCAB)) == [0, VOCAB - 1]


def after(text, **sampling):
    bans = Bans(request(end_id=9, sampling=SamplingParams(**sampling)), VOCAB)
    return bool(bans), sorted(bans.after(np.array(text)))


def test_bad_words_are_banned_where_they_would_be_complete():
    assert after([5, 6, 7], bad_words=Words.of((3,))) == (True, [3])
    assert after([5, 6, 7], bad_words=Words.of((3,), (7, 4), (6, 2))) == (True, [3, 4])
    assert after([5, 6, 7]) == (False, [])


@pytest.mark.parametrize(("length", "banned"), [(3, [9]), (4, [9]), (5, []), (6, [])])
def test_the_end_is_banned_until_min_tokens(length, banned):
    assert after(range(length), min_tokens=2) == (True, banned)


def test_the_bits_of_a_mask_are_the_allowed_ids_of_their_position():
    words = np.zeros((2, 2), np.int32)
    words[1, 0], words[1, 1] = 1 << 4, 1 << 2
    masks = TokenMasks(request(token_masks=words), VOCAB)
    assert masks
    assert not masks.allowed_mask(3).any()
    assert masks.allowed_mask(4).nonzero()[0].tolist() == [4, 34]
    assert len(masks.allowed_mask(4)) == VOCAB
    assert not TokenMasks(request(), VOCAB)


GREEDY = {tensors.RUNTIME_TOP_K: 1}
ALL = {tensors.RUNTIME_TOP_P: 1.0}  # without it, an engine decodes greedily


@pytest.mark.parametrize(
    ("given", "greedy", "truncates", "sent"),
    [
        ({}, False, False, ALL),
        ({"temperature": 0.5}, False, False, ALL | {tensors.TEMPERATURE: 0.5}),
        ({"top_k": 1, "temperature": 0.5}, True, False, GREEDY),
        ({"temperature": 0.0, "min_p": 0.5}, True, False, GREEDY),
        (
            {"top_k": 1, "presence_penalty": 1.0},
            True,
            False,
            GREEDY | {tensors.PRESENCE_PENALTY: 1},
        ),
        ({"top_k": 5}, False, True, ALL | {tensors.RUNTIME_TOP_K: 5}),
        ({"top_p": 0.9}, False, True, {tensors.RUNTIME_TOP_P: 0.9}),
        ({"min_p": 0.1}, False, True, ALL | {tensors.MIN_P: 0.1}),
    ],
)
def test_engines_get_the_parameters_that_have_an_effect(given, greedy, truncates, sent):
    sampling = SamplingParams(**given, min_tokens=3)
    assert (sampling.greedy, sampling.truncates) == (greedy, truncates)
    assert sampling.engine_inputs() == sent
    assert {name: getattr(sampling, name) for name in NUMBERS} == vars(SamplingNumbers(**given))


@pytest.mark.parametrize(
    ("bounds", "value", "fault"),
    [
        (Bounds(0, 1), 1, ""),
        (Bounds(0, 1), 0, ""),
        (Bounds(above=0), 0, "must be greater than 0; got 0"),
        (Bounds(minimum=2), 1, "must be at least 2; got 1"),
        (Bounds(), float("nan"), "must be a finite number; got nan"),
    ],
)
def test_a_number_outside_its_bounds_is_explained(bounds, value, fault):
    assert bounds.fault(value) == fault
