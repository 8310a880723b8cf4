"""A deployment derives each model's settings from the profile and the checkpoints."""

import pytest
from checkpoints import write_tokenizer
from profile_files import engines, load, profile

from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment


def test_defaults_are_read_from_the_checkpoints(folder):
    settings = load(folder, profile()).loop_settings()
    assert settings.target.max_seq_len == 1024
    assert settings.target.kv_cache_tokens == 16 * 1024
    assert settings.end_ids == (0,)
    assert settings.drafter == "hybrid"
    assert settings.draft.model == "draft"


def test_prompt_lookup_is_the_default_without_a_draft_model(folder):
    settings = load(folder, profile(engines=engines())).loop_settings()
    assert settings.drafter == "prompt_lookup"
    assert settings.drafters == ("prompt_lookup", "none")
    assert settings.draft is None


def test_a_target_with_max_draft_len_0_allows_only_drafter_none(folder):
    settings = load(folder, profile(engines=engines(max_draft_len=0))).loop_settings()
    assert settings.drafters == ("none",)


def test_drafting_ahead_is_on_by_default_only_with_two_devices(folder):
    pair = profile()["engines"]
    settings = load(folder, profile()).loop_settings()
    assert (settings.draft_ahead, settings.draft_branches) == (None, True)
    assert settings.engines_share_device
    pair["draft"]["device"] = "cuda:1"
    settings = load(folder, profile(engines=pair, decoding={"draft_ahead": True})).loop_settings()
    assert settings.draft_ahead is True
    assert not settings.engines_share_device
    pair["target"]["device"] = "cuda:1"
    assert load(folder, profile(engines=pair)).loop_settings().engines_share_device


def test_the_draft_engine_can_have_a_shorter_max_seq_len(folder):
    short = profile()
    short["engines"]["draft"]["max_seq_len"] = 512
    settings = load(folder, short).loop_settings()
    assert (settings.target.max_seq_len, settings.draft.max_seq_len) == (1024, 512)


def test_errors_for_checkpoints_name_the_command_line_option(folder):
    write_tokenizer(folder / "target")
    with pytest.raises(TandemError, match="--draft: no folder"):
        deployment.for_checkpoints(folder / "target", folder / "nowhere")


def test_checkpoints_are_checked_before_weights_are_downloaded(folder):
    write_tokenizer(folder / "target")
    (folder / "target" / "model.safetensors").unlink()
    planned = deployment.for_checkpoints(folder / "target", None, name="mine", with_weights=False)
    assert (planned.profile.name, planned.drafters) == ("mine", ("prompt_lookup", "none"))
    with pytest.raises(TandemError, match=r"--target: .* has no weights"):
        deployment.for_checkpoints(folder / "target", None)


def test_a_laptop_may_read_a_long_prompt_for_as_long_as_a_request_may_take(folder):
    write_tokenizer(folder / "target")
    settings = deployment.for_checkpoints(folder / "target", None).loop_settings()
    assert settings.target.timeout == settings.request_timeout


def test_each_engine_gets_its_own_kv_cache_size(folder):
    small = profile()
    small["engines"]["target"]["kv_cache_tokens"] = 4096
    small["engines"]["draft"] |= {"kv_cache_tokens": 1024, "kv_block_tokens": 16}
    settings = load(folder, small).loop_settings()
    target, draft = settings.target, settings.draft
    assert (target.kv_cache_tokens, target.kv_block_tokens, target.kv_blocks) == (4096, 32, 128)
    assert (draft.kv_cache_tokens, draft.kv_block_tokens, draft.kv_blocks) == (1024, 16, 64)
    assert settings.draft_kv_blocks == 64


def test_each_engine_gets_its_timeout_from_the_profile(folder):
    settings = load(folder, profile(timeouts={"target": 3.0, "draft": 2.0})).loop_settings()
    assert (settings.target.timeout, settings.draft.timeout) == (3.0, 2.0)


def test_text_size_is_limited_by_the_tokenizer_and_the_profile(folder):
    planned = load(folder, profile())
    fits = planned.tokenizer.longest_token_bytes * 1024
    assert planned.max_text_bytes == fits
    for limit, expected in ((fits + 1, fits), (fits - 1, fits - 1)):
        planned = load(folder, profile(limits={"max_text_bytes": limit}))
        all_settings = planned.loop_settings(), planned.tokenizer_settings()
        all_settings += (planned.forwarder_settings(planned.stream_entry),)
        assert [settings.max_text_bytes for settings in all_settings] == [expected] * 3


def test_request_limits_come_from_the_profile(folder):
    limits = {"max_words": 2, "max_words_bytes": 3, "max_ngram_size": 4, "max_logits_bytes": 0}
    planned = load(folder, profile(limits=limits, admission={"max_queue_bytes": 5}))
    settings = planned.loop_settings()
    assert {name: getattr(settings, name) for name in limits} == limits
    assert settings.max_queue_bytes == 5
    for other_settings in (
        planned.tokenizer_settings(),
        planned.forwarder_settings(planned.stream_entry),
    ):
        assert (other_settings.max_words, other_settings.max_words_bytes) == (2, 3)
