"""Inputs control how a request drafts, and each input has a default."""

from dataclasses import replace

import pytest
from client_inputs import SETTINGS, rejection, request_of
from scripted import with_engines

from tandem.bls.settings import AUTO, DraftTokenizer

DRAFTING = (
    "drafter",
    "draft_len",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "use_draft_logits",
    "draft_acceptance_threshold",
)
LOGITS = {"use_draft_logits": True}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"drafter": "none"}, ("none", 0, 0, 1, False, None)),
        ({"num_draft_tokens": 0}, ("none", 0, 0, 1, False, None)),
        ({"num_draft_tokens": AUTO}, ("draft_model", AUTO, 5, 2, False, None)),
        ({"num_draft_tokens": 7}, ("draft_model", 7, 7, 2, False, None)),
        ({"drafter": "prompt_lookup"}, ("prompt_lookup", 4, 5, 2, False, None)),
        (
            {"drafter": "hybrid", "prompt_lookup_num_tokens": 3, "num_draft_tokens": 7},
            ("hybrid", 7, 3, 2, False, None),
        ),
        ({"drafter": "hybrid", "max_matching_ngram_size": 1}, ("hybrid", 4, 5, 1, False, None)),
        (LOGITS, ("draft_model", 4, 5, 2, True, None)),
        (LOGITS | {"draft_acceptance_threshold": 0.5}, ("draft_model", 4, 5, 2, True, 0.5)),
        (
            {"drafter": "prompt_lookup", "use_draft_logits": False},
            ("prompt_lookup", 4, 5, 2, False, None),
        ),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, dict) else "",
)
def test_draft_inputs_override_the_deployments_defaults(values, expected):
    request = request_of(**values)
    assert tuple(getattr(request, name) for name in DRAFTING) == expected


@pytest.mark.parametrize(
    ("values", "served", "copied"),
    [
        ({"drafter": "hybrid"}, AUTO, 16),
        ({"drafter": "hybrid", "num_draft_tokens": AUTO}, 4, 16),
        ({"drafter": "hybrid", "num_draft_tokens": 7}, AUTO, 7),
        ({"drafter": "hybrid", "prompt_lookup_num_tokens": 3}, AUTO, 3),
        ({"drafter": "prompt_lookup"}, AUTO, 16),
        ({"drafter": "prompt_lookup", "num_draft_tokens": AUTO}, 4, 16),
    ],
)
def test_with_draft_len_auto_copies_reach_the_maximum_length(values, served, copied):
    """`auto` doesn't limit the length of copies."""
    settings = replace(SETTINGS, draft_len=served)
    assert settings.target.max_draft_len == 16
    assert request_of(settings=settings, **values).prompt_lookup_num_tokens == copied


@pytest.mark.parametrize(
    ("values", "pool"),
    [
        ({"drafter": "prompt_lookup"}, None),
        ({"drafter": "prompt_lookup", "lookup_pool": "ours"}, "ours"),
        ({"drafter": "hybrid", "lookup_pool": "e\u0301\0 \n"}, "e\u0301\0 \n"),
        ({"drafter": "hybrid", "lookup_pool": "x" * 256}, "x" * 256),
        ({"drafter": "none", "lookup_pool": "ours"}, None),
        ({"num_draft_tokens": 0, "lookup_pool": "ours"}, None),
    ],
)
def test_the_lookup_pool_input_sets_the_pool_of_a_request(values, pool):
    assert request_of(**values).lookup_pool == pool


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", " must have between 1 and 256 bytes; got 0"),
        ("x" * 257, " must have between 1 and 256 bytes; got 257"),
        ("é" * 129, " must have between 1 and 256 bytes; got 258"),
        (b"\xff", " must be UTF-8; got byte 0xff at position 0"),
    ],
)
def test_invalid_pool_names_are_rejected(name, reason):
    for drafter in ("prompt_lookup", "none"):
        text = rejection(drafter=drafter, lookup_pool=name)
        assert text == f"input 'lookup_pool'{reason}"


@pytest.mark.parametrize("drafter", ["prompt_lookup", "hybrid", "draft_model", "none"])
def test_a_pool_is_rejected_if_the_profile_has_none(drafter):
    none = replace(SETTINGS, max_pool_tokens=0)
    assert rejection(settings=none, drafter=drafter, lookup_pool="ours") == (
        "input 'lookup_pool' isn't supported by this deployment: "
        "its profile sets decoding.prompt_lookup.max_pool_tokens to 0"
    )


def test_a_pool_is_rejected_unless_the_drafter_does_lookup():
    assert rejection(drafter="draft_model", lookup_pool="ours") == (
        "input 'lookup_pool' requires 'drafter' to be hybrid or prompt_lookup"
    )


def test_draft_ahead_overrides_the_deployments_default():
    ahead = with_engines(replace(SETTINGS, draft_ahead=True), draft={"branches": True})
    given = {"true": True, "false": False, "auto": None, "": True}
    assert {
        text: request_of(settings=ahead, draft_ahead=text).draft_ahead for text in given
    } == given
    assert request_of(settings=ahead, drafter="hybrid").draft_ahead is True
    assert request_of().draft_ahead is None


def test_draft_ahead_true_is_rejected_when_sampling_with_draft_logits():
    able = with_engines(SETTINGS, draft={"branches": True})
    by_logits = {"use_draft_logits": True, "temperature": 0.5}
    assert request_of(settings=replace(able, draft_ahead=True), **by_logits).draft_ahead is True
    assert rejection(settings=able, draft_ahead="true", **by_logits) == (
        "input 'draft_ahead' can't be true if the request samples with 'use_draft_logits'; send "
        "auto or false"
    )
    # Greedy requests always compare ids.
    assert request_of(settings=able, draft_ahead="true", use_draft_logits=True).draft_ahead is True


def test_the_default_threshold_applies_only_with_logits():
    lossy = replace(SETTINGS, draft_acceptance_threshold=0.25)
    assert request_of(settings=lossy).draft_acceptance_threshold is None
    with_logits = request_of(settings=replace(lossy, use_draft_logits=True))
    assert with_logits.use_draft_logits
    assert with_logits.draft_acceptance_threshold == 0.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_draft_tokens", 1),
        ("num_draft_tokens", 0),  # the engine would draft anyway, without being counted
        ("use_draft_logits", True),
        ("max_matching_ngram_size", 1),
        ("lookup_pool", "ours"),
    ],
)
def test_draft_inputs_are_rejected_if_the_engine_drafts_by_itself(name, value):
    alone = replace(SETTINGS, drafters=("engine",), drafter="engine")
    assert request_of(settings=alone).drafter == "engine"
    assert rejection(settings=alone, **{name: value}) == (
        f"input '{name}' isn't supported: the target drafts by itself"
    )


def test_draft_logits_are_rejected_if_the_draft_has_another_vocabulary():
    other = replace(SETTINGS, draft_tokenizer=DraftTokenizer(folder="own"))
    assert rejection(settings=other, use_draft_logits=True) == (
        "input 'use_draft_logits' must be false: the draft model has a vocabulary of its own, so "
        "its logits don't fit the target's"
    )
    assert not request_of(settings=other).use_draft_logits


def test_a_threshold_is_rejected_if_the_draft_engine_returns_no_logits():
    able = replace(SETTINGS.draft.capabilities, returns_logits=False)
    bare = replace(
        SETTINGS,
        draft=replace(SETTINGS.draft, capabilities=able),
        draft_acceptance_threshold=0.5,
        use_draft_logits=True,
    )
    assert rejection(settings=bare, use_draft_logits=True, draft_acceptance_threshold=0.5) == (
        "input 'draft_acceptance_threshold' isn't supported: the draft engine returns no logits"
    )
    assert request_of(settings=bare, temperature=1.0).draft_acceptance_threshold is None
    assert not request_of(settings=bare, temperature=1.0).use_draft_logits


TEXT, IDS = {"prediction": "x"}, {"prediction_ids": [1, 2]}


@pytest.mark.parametrize("prediction", [TEXT, IDS], ids=["text", "ids"])
@pytest.mark.parametrize(
    ("values", "drafters", "expected"),
    [
        ({}, SETTINGS.drafters, ("hybrid", 16)),
        ({"num_draft_tokens": 7}, SETTINGS.drafters, ("hybrid", 7)),
        ({"num_draft_tokens": AUTO}, SETTINGS.drafters, ("hybrid", 16)),
        ({"prompt_lookup_num_tokens": 3}, SETTINGS.drafters, ("hybrid", 3)),
        ({}, ("draft_model", "prompt_lookup", "none"), ("prompt_lookup", 16)),
        ({}, ("draft_model", "none"), ("draft_model", 0)),
        ({"drafter": "prompt_lookup"}, SETTINGS.drafters, ("prompt_lookup", 16)),
        ({"drafter": "draft_model"}, SETTINGS.drafters, ("draft_model", 0)),
        ({"drafter": "none"}, SETTINGS.drafters, ("none", 0)),
        ({"num_draft_tokens": 0}, SETTINGS.drafters, ("none", 0)),
    ],
)
def test_a_prediction_enables_lookup_unless_a_drafter_is_requested(
    values, drafters, expected, prediction
):
    settings = replace(SETTINGS, drafters=drafters)
    request = request_of(settings=settings, **values, **prediction)
    assert (request.drafter, request.prediction_num_tokens) == expected
    assert (request.prediction is None) == (prediction is TEXT or not expected[1])


def test_an_empty_prediction_changes_nothing():
    assert request_of(prediction="").drafter == request_of().drafter


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (TEXT | IDS, "send input 'prediction' or input 'prediction_ids', not both"),
        (
            {"prediction": "x" * 51},
            "input 'prediction' has 51 bytes; the limit is 50; shorten the prediction",
        ),
        (
            {"prediction_ids": [1] * 65},
            (
                "input 'prediction_ids' has 65 tokens; the limit is 64 (max_seq_len); "
                "shorten the prediction"
            ),
        ),
        ({"prediction_ids": [1, 100]}, "input 'prediction_ids' must have ids"),
        ({"prediction": b"\xff"}, "'prediction' must be UTF-8"),
    ],
)
def test_an_invalid_prediction_is_rejected(values, line):
    assert line in rejection(**values)
