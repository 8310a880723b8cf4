"""Conflicting sections are rejected with an error that names the key to change."""

import math

import pytest
from profile_files import engines, load, profile, rejection


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"decoding": {"prompt_lookup": {"prompt_lookup_num_tokens": 9}}},
            "decoding.prompt_lookup.prompt_lookup_num_tokens: must be at most 8, which is engines",
        ),
        (
            {"decoding": {"prompt_lookup": {"max_matching_ngram_size": 9}}},
            "decoding.prompt_lookup.max_matching_ngram_size: must be at most 8, which is limits.",
        ),
        (
            {"decoding": {"draft_len": 9}},
            "decoding.draft_len: must be at most 8, which is engines.target.max_draft_len; got 9",
        ),
        (
            {"decoding": {"drafter": "oracle"}},
            "decoding.drafter: must be one of hybrid, draft_model, prompt_lookup, none",
        ),
        (
            {"decoding": {"drafter": "draft_model"}, "engines": engines()},
            "decoding.drafter: 'draft_model' needs engines.draft; add it",
        ),
        (
            {"decoding": {"draft_ahead": True}, "engines": engines()},
            "decoding.draft_ahead: must be auto or false, because engines.draft is missing",
        ),
        (
            {"decoding": {"draft_ahead": "maybe"}},
            "decoding.draft_ahead: must be auto, true or false; got 'maybe'",
        ),
        (
            {"entries": [{"name": "bls", "kind": "forward"}]},
            "entries: must have exactly one entry of kind 'stream'; got 0",
        ),
        (
            {
                "entries": [
                    {"name": "bls", "kind": "stream"},
                    {"name": "target", "kind": "forward"},
                ]
            },
            "entries.1.name: name 'target' is already used",
        ),
    ],
)
def test_conflicting_sections_are_rejected(folder, sections, line):
    assert f": {line}" in rejection(folder, profile(**sections))


def test_max_words_above_the_limit_of_a_tensor_is_rejected(folder):
    assert load(folder, profile(limits={"max_words": 2048}))
    assert rejection(folder, profile(limits={"max_words": 2049})) == (
        "profile.yaml:8: limits.max_words: 2049 times max_batch_size 32 must be at most 65536, "
        "the limit of a tensor; lower either"
    )


@pytest.mark.parametrize("name", ["target", "request", "startup"])
@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_timeout_that_is_not_finite_is_rejected(folder, name, number):
    message = rejection(folder, profile(timeouts={name: number}))
    assert message.endswith(f"timeouts.{name}: must be a finite number; got {number}")


@pytest.mark.parametrize(
    ("max_pool_tokens", "said"),
    [
        (63, "must be 0, or at least 64; got 63"),
        (-1, "must be at least 0; got -1"),
        (2**24 + 1, "must be at most 16777216; got 16777217"),
    ],
)
def test_pool_sizes_out_of_range_are_rejected(folder, max_pool_tokens, said):
    decoding = {"prompt_lookup": {"max_pool_tokens": max_pool_tokens}}
    message = rejection(folder, profile(decoding=decoding))
    assert "decoding.prompt_lookup.max_pool_tokens: " in message
    assert said in message


def test_documents_for_pools_are_checked(folder):
    lookup = {"pools": str(folder / "documents"), "max_pool_tokens": 128}
    decoding = {"prompt_lookup": lookup}
    assert "documents isn't a readable folder" in rejection(folder, profile(decoding=decoding))
    (folder / "documents" / "team").mkdir(parents=True)
    assert load(folder, profile(decoding=decoding))
    (folder / "documents" / "note").write_text("text")
    assert "note must be a folder of documents" in rejection(folder, profile(decoding=decoding))
    lookup["max_pool_tokens"] = 0
    assert "needs max_pool_tokens above 0" in rejection(folder, profile(decoding=decoding))


@pytest.mark.parametrize("name", ["max_requests", "max_queue"])
def test_more_sequences_than_triton_has_threads_for_are_rejected(folder, name):
    assert f"admission.{name}: must be at most 2048; got 2049" in rejection(
        folder, profile(admission={name: 2049})
    )
