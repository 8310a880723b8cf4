"""Sections that are right but do not fit together are refused, by the key that is to change."""

import pytest
from profile_files import engines, load, profile, refusal


def test_lookup_longer_than_the_targets_limit_is_refused(folder):
    lookup = {"prompt_lookup_num_tokens": 9}
    assert (
        "decoding.prompt_lookup.prompt_lookup_num_tokens: 9 is over engines.target.max_draft_len, "
        "which is 8" in refusal(folder, profile(decoding={"prompt_lookup": lookup}))
    )


def test_unknown_drafter_names_the_known_ones(folder):
    text = refusal(folder, profile(decoding={"drafter": "oracle"}))
    assert "decoding.drafter: 'oracle' given, these engines allow " in text


def test_drafting_ahead_without_an_engine_that_can_is_refused(folder):
    assert "decoding.draft_ahead: true, but engines.draft is missing; say auto or false" in refusal(
        folder, profile(engines=engines(), decoding={"draft_ahead": True})
    )
    assert "decoding.draft_ahead: must be auto, true or false, not 'maybe'" in refusal(
        folder, profile(decoding={"draft_ahead": "maybe"})
    )


def test_draft_len_over_the_targets_limit_is_refused(folder):
    assert "decoding.draft_len: 9 is over engines.target.max_draft_len, which is 8" in refusal(
        folder, profile(decoding={"draft_len": 9})
    )


def test_two_models_of_one_name_are_refused(folder):
    entries = [{"name": "bls", "kind": "stream"}, {"name": "target", "kind": "forward"}]
    assert "entries.1.name: a second model named 'target'" in refusal(
        folder, profile(entries=entries)
    )


def test_profile_without_a_stream_entry_is_refused(folder):
    assert "entries: 0 entries of kind 'stream'; one must hold the loop" in refusal(
        folder, profile(entries=[{"name": "bls", "kind": "forward"}])
    )


def test_draft_model_without_a_draft_engine_is_refused(folder):
    assert "decoding.drafter: 'draft_model' needs engines.draft, which is missing" in refusal(
        folder, profile(engines=engines(), decoding={"drafter": "draft_model"})
    )


@pytest.mark.parametrize(
    ("instances", "said"),
    [
        (0, "instances: must be greater than or equal to 1, not 0"),
        (33, "instances: must be less than or equal to 32, not 33"),
        (3, "instances: 3 loops for 2 sequences at once (admission.max_requests); lower the one"),
    ],
)
def test_loops_without_anything_to_do_are_refused(folder, instances, said):
    assert said in refusal(folder, profile(instances=instances, admission={"max_requests": 2}))


def test_more_words_than_are_read_of_one_tensor_are_refused(folder):
    assert load(folder, profile(limits={"max_words": 2048}))
    assert refusal(folder, profile(limits={"max_words": 2049})) == (
        "profile.yaml:8: limits.max_words: 2049 for each of 32 prompts (max_batch_size) is over "
        "65536 in one tensor; lower either"
    )


@pytest.mark.parametrize(
    ("instances", "max_pool_tokens", "said"),
    [
        (1, 63, "63 tokens for 1 loop hold no answer, each of which counts for 64 tokens at least"),
        (2, 127, "; say 0, or 128 or more"),
        (1, -1, "must be greater than or equal to 0, not -1"),
        (1, 2**24 + 1, "must be less than or equal to 16777216, not 16777217"),
    ],
)
def test_pools_that_hold_nothing_or_too_much_are_refused(folder, instances, max_pool_tokens, said):
    decoding = {"prompt_lookup": {"max_pool_tokens": max_pool_tokens}}
    told = refusal(folder, profile(instances=instances, decoding=decoding))
    assert "decoding.prompt_lookup.max_pool_tokens: " in told
    assert said in told


def test_pools_of_several_loops_share_the_bound(folder):
    for instances, each in ((1, 128), (2, 64)):
        decoding = {"prompt_lookup": {"max_pool_tokens": 128}}
        planned = load(folder, profile(instances=instances, decoding=decoding))
        assert planned.loop_settings().max_pool_tokens_each == each
    assert load(folder, profile()).loop_settings().max_pool_tokens == 0


def test_ngrams_over_the_limit_of_a_request_are_refused(folder):
    lookup = {"prompt_lookup": {"max_matching_ngram_size": 9}}
    assert (
        "decoding.prompt_lookup.max_matching_ngram_size: 9 is over limits.max_ngram_size, which "
        "is 8; lower the one or raise the other"
    ) in refusal(folder, profile(decoding=lookup))
