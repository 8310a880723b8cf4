"""Conflicting sections are rejected with the key to change."""

import pytest
from profile_files import engines, load, profile, refusal


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"decoding": {"prompt_lookup": {"prompt_lookup_num_tokens": 9}}},
            "decoding.prompt_lookup.prompt_lookup_num_tokens: 9 is over engines.target.max_draft",
        ),
        (
            {"decoding": {"prompt_lookup": {"max_matching_ngram_size": 9}}},
            "decoding.prompt_lookup.max_matching_ngram_size: 9 is over limits.max_ngram_size, whi",
        ),
        (
            {"decoding": {"draft_len": 9}},
            "decoding.draft_len: 9 is over engines.target.max_draft_len, which is 8; lower the on",
        ),
        (
            {"decoding": {"drafter": "oracle"}},
            "decoding.drafter: 'oracle' given, these engines allow draft_model, prompt_lookup",
        ),
        (
            {"decoding": {"drafter": "draft_model"}, "engines": engines()},
            "decoding.drafter: 'draft_model' needs engines.draft, which is missing",
        ),
        (
            {"decoding": {"draft_ahead": True}, "engines": engines()},
            "decoding.draft_ahead: true, but engines.draft is missing; say auto or false",
        ),
        (
            {"decoding": {"draft_ahead": "maybe"}},
            "decoding.draft_ahead: must be auto, true or false, not 'maybe'",
        ),
        (
            {"entries": [{"name": "bls", "kind": "forward"}]},
            "entries: 0 entries of kind 'stream'; one must hold the loop",
        ),
        (
            {
                "entries": [
                    {"name": "bls", "kind": "stream"},
                    {"name": "target", "kind": "forward"},
                ]
            },
            "entries.1.name: a second model named 'target'",
        ),
        ({"instances": 0}, "instances: must be greater than or equal to 1, not 0"),
        ({"instances": 33}, "instances: must be less than or equal to 32, not 33"),
        (
            {"instances": 3, "admission": {"max_requests": 2}},
            "instances: 3 loops for 2 sequences at once (admission.max_requests); lower the one",
        ),
    ],
)
def test_conflicting_sections_are_rejected(folder, sections, line):
    assert f": {line}" in refusal(folder, profile(**sections))


def test_max_words_over_the_limit_of_a_tensor_is_rejected(folder):
    assert load(folder, profile(limits={"max_words": 2048}))
    assert refusal(folder, profile(limits={"max_words": 2049})) == (
        "profile.yaml:8: limits.max_words: 2049 for each of 32 prompts (max_batch_size) is over "
        "65536 in one tensor; lower either"
    )


@pytest.mark.parametrize(
    ("instances", "max_pool_tokens", "said"),
    [
        (1, 63, "profile.yaml:3: decoding.prompt_lookup.max_pool_tokens"),
        (2, 127, "profile.yaml:3: decoding.prompt_lookup.max_pool_tokens"),
        (
            1,
            -1,
            "profile.yaml:3: decoding.prompt_lookup.max_pool_tokens: must be at least 0; got -1",
        ),
        (
            1,
            2**24 + 1,
            "profile.yaml:3: decoding.prompt_lookup.max_pool_tokens: must be at most 16777216",
        ),
    ],
)
def test_empty_and_oversized_pools_are_rejected(folder, instances, max_pool_tokens, said):
    decoding = {"prompt_lookup": {"max_pool_tokens": max_pool_tokens}}
    told = refusal(folder, profile(instances=instances, decoding=decoding))
    assert "decoding.prompt_lookup.max_pool_tokens: " in told
    assert said in told


def test_pools_of_several_loops_share_the_limit(folder):
    for instances, each in ((1, 128), (2, 64)):
        decoding = {"prompt_lookup": {"max_pool_tokens": 128}}
        planned = load(folder, profile(instances=instances, decoding=decoding))
        assert planned.loop_settings().max_pool_tokens_each == each
    assert load(folder, profile()).loop_settings().max_pool_tokens == 0
