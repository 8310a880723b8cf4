"""The loop copies from a prediction, even after edits, without changing the output."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    ENDLESS,
    SETTINGS,
    Draft,
    Target,
    Writes,
    decoding_of,
    expected,
    ids,
    play,
)
from scripted import request_of as any_request
from strategies import languages, requests_of

from tandem.bls.request import Request
from tandem.lookup.pools import LookupPools

TEXT = [*range(10, 60)]
DRAFTERS = ["prompt_lookup", "hybrid"]


def request_of(prediction, **changes):
    plain = Request(
        prompt_ids=ids(1, 2, 3),
        max_tokens=len(TEXT),
        drafter="prompt_lookup",
        prompt_lookup_num_tokens=4,
        max_matching_ngram_size=2,
        prediction=ids(*prediction),
        prediction_num_tokens=16,
    )
    return replace(plain, **changes)


def played(request, language=None, pools=None):
    language = language or Writes(len(request.prompt_ids), TEXT)
    decoding = decoding_of(request, pools=pools)
    play(decoding, Target(language), Draft(ENDLESS))
    return decoding


def earned(decoding):
    drafted = decoding.statistics.by_drafter["prediction"]
    return drafted.num_accepted_draft_tokens, drafted.num_draft_tokens


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_correct_prediction_needs_few_rounds(drafter):
    decoding = played(request_of(TEXT, drafter=drafter, draft_len=4))
    accepted, drafted = earned(decoding)
    assert accepted == drafted > 40
    assert decoding.statistics.num_rounds <= 5


@pytest.mark.parametrize(
    "edited",
    [
        [*TEXT[:20], 70, *TEXT[21:]],
        [*TEXT[:20], 70, 71, 72, 73, 74, *TEXT[20:]],
        TEXT[:15] + TEXT[25:],
        TEXT[5:],
        [80, 81, *TEXT],
    ],
    ids=["replaced", "inserted", "deleted", "missing start", "new start"],
)
def test_copying_continues_after_an_edit(edited):
    decoding = played(request_of(TEXT, max_tokens=len(edited)), Writes(3, edited))
    assert decoding.sequence.output.tolist() == edited
    assert decoding.statistics.num_rounds < len(edited) / 3


def test_copying_continues_at_the_next_match_after_an_edit():
    part, other = [20, 21, 22], [30, 31, 32]
    prediction = [*part, 40, 41, 42, 43, *other, *part, 50, 51, 52, 53, 54, 55]
    written = [*part, 40, 41, 70, 43, *other, *part, 50, 51, 52, 53, 54, 55]
    decoding = played(request_of(prediction, max_tokens=len(written)), Writes(3, written))
    accepted, drafted = earned(decoding)
    assert drafted - accepted <= 15  # the part of the first draft after the edit


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_useless_prediction_costs_at_most_one_round(drafter):
    request = request_of([90, 91, 92], drafter=drafter, draft_len=4)
    with_it, without = played(request), played(replace(request, prediction=None))
    assert with_it.statistics.num_rounds <= without.statistics.num_rounds + 1
    assert earned(with_it) == (0, 3)


def test_a_longer_match_in_the_prompt_is_preferred():
    prompt = [*range(10, 30), *range(40, 60)]
    request = request_of([12, 13, 14, 90, 91, 92], prompt_ids=ids(*prompt))
    decoding = played(request, Writes(len(prompt), [*range(10, 30), *range(40, 60)]))
    drafted = decoding.statistics.by_drafter["prompt_lookup"]
    assert drafted.num_accepted_draft_tokens > drafted.num_draft_tokens / 2


def test_prediction_num_tokens_limits_drafts_from_a_prediction():
    request = request_of(TEXT, prompt_lookup_num_tokens=2, prediction_num_tokens=7)
    target = Target(Writes(3, TEXT))
    play(decoding_of(request), target)
    assert max(len(call.draft) for call in target.calls) == 7


def test_drafts_from_a_prediction_grow_as_long_as_it_is_right():
    text = [*range(10, 210)]
    request = request_of(text, max_tokens=len(text), prediction_num_tokens=100)
    target = Target(Writes(3, text))
    play(decoding_of(request), target)
    assert [len(call.draft) for call in target.calls[:4]] == [24, 25, 51, 96]


def test_a_prediction_never_joins_a_pool():
    pools = LookupPools(10_000)
    secret = [*range(70, 90)]
    for _ in range(2):
        played(request_of(secret, lookup_pool="ours"), pools=pools)
    assert pools.lookup("ours", secret[:5], 4) is None
    plain = replace(request_of(secret, lookup_pool="ours"), prediction=None)
    other = played(plain, pools=pools)
    assert "prediction" not in other.statistics.by_drafter


@given(
    languages,
    requests_of(any_request, drafters=DRAFTERS, max_min_tokens=10),
    st.lists(st.integers(0, 7), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(1, 16),
)
def test_a_prediction_never_changes_the_output(language, request, noise, right, longest):
    """The prediction is right, then random, then right again."""
    said = expected(replace(request, max_tokens=40), language)[0]
    predicted = ids(*said[:right], *noise, *said[right:])
    request = replace(request, prediction=predicted, prediction_num_tokens=longest)
    decoding = decoding_of(request, SETTINGS)
    chunks = play(decoding, Target(language, request.end_ids), Draft(language, (True, False)))
    tokens, text, reason = expected(request, language)
    assert np.array_equal(decoding.sequence.output, tokens)
    assert "".join(chunk.text for chunk in chunks) == text
    assert decoding.finish_reason == reason
