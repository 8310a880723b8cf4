"""Whatever is wrong with a profile is said in one line, before any server starts."""

import json

import pytest
import yaml
from checkpoints import write_empty, write_tokenizer

from tandem.bls.settings import AUTO
from tandem.tools.errors import TandemError
from tandem.tools.profiles import deployment


@pytest.fixture
def folder(tmp_path):
    """A profile's folder with a target, a draft and the tokenizer that they share."""
    size = write_tokenizer(tmp_path / "tokenizer")
    write_empty(tmp_path / "target", size)
    write_empty(tmp_path / "draft", size)
    return tmp_path


def profile(**changes):
    """A profile that is right, with some sections changed."""
    whole = {
        "name": "test",
        "engines": {
            "target": {"checkpoint": "target", "max_draft_len": 8},
            "draft": {"checkpoint": "draft"},
        },
        "tokenizer": {"folder": "tokenizer"},
    }
    return whole | changes


def load(folder, content):
    path = folder / "profile.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return deployment.load(path)


def refusal(folder, content):
    """The one line that a wrong profile is answered with, without its folder."""
    with pytest.raises(TandemError) as refused:
        load(folder, content)
    text = str(refused.value)
    assert "\n" not in text
    return text.replace(f"{folder}/", "")


def engines(**target):
    return {"target": {"checkpoint": "target", "max_draft_len": 8} | target}


def test_profile_fills_defaults_from_the_checkpoints(folder):
    settings = load(folder, profile()).loop_settings()
    assert settings.target.max_seq_len == 1024
    assert settings.target.kv_cache_tokens == 16 * 1024
    assert settings.end_ids == (0,)
    assert settings.drafter == "draft_model"
    assert settings.draft.model == "draft"


def test_profile_without_a_draft_looks_up(folder):
    settings = load(folder, profile(engines=engines())).loop_settings()
    assert settings.drafter == "prompt_lookup"
    assert settings.drafters == ("prompt_lookup", "none")
    assert settings.draft is None


def test_profile_with_a_draft_lets_a_request_choose_among_all(folder):
    settings = load(folder, profile()).loop_settings()
    assert settings.drafters == ("draft_model", "prompt_lookup", "hybrid", "none")


def test_target_that_verifies_no_drafts_gets_none(folder):
    settings = load(folder, profile(engines=engines(max_draft_len=0))).loop_settings()
    assert settings.drafters == ("none",)


def test_lookup_longer_than_the_targets_limit_is_refused(folder):
    lookup = {"prompt_lookup_num_tokens": 9}
    assert (
        "decoding.prompt_lookup.prompt_lookup_num_tokens: 9 is over engines.target.max_draft_len, "
        "which is 8" in refusal(folder, profile(decoding={"prompt_lookup": lookup}))
    )


def test_end_ids_are_those_of_the_generation_config_when_it_names_them(folder):
    ids = json.dumps({"eos_token_id": [3, 5]})
    (folder / "target" / "generation_config.json").write_text(ids)
    assert load(folder, profile()).end_ids == (3, 5)


def test_end_id_is_the_tokenizers_when_the_checkpoint_names_none(folder):
    write_empty(folder / "target", 300, eos_token_id=None)
    assert load(folder, profile()).end_ids == (0,)


def test_lengths_are_those_of_gpt2_when_the_checkpoint_is_one(folder):
    write_empty(folder / "target", 300, max_position_embeddings=None, n_positions=512)
    assert load(folder, profile()).target.max_seq_len == 512


def test_padded_vocabularies_are_accepted_when_the_tokenizer_is_shared(folder):
    write_empty(folder / "draft", 320)
    settings = load(folder, profile()).loop_settings()
    assert (settings.target.vocab_size, settings.draft.vocab_size) == (300, 320)


def test_unknown_key_names_the_nearest_one(folder):
    text = "name: test\nengines:\n  target:\n    checkpoint: target\n    max_draft_lenn: 4\n"
    assert refusal(folder, text) == (
        "profile.yaml:5: engines.target.max_draft_lenn: unknown key; did you mean 'max_draft_len'?"
    )


def test_unknown_key_lists_the_known_ones_when_none_is_near(folder):
    assert refusal(folder, profile(admission={"zzz": 1})) == (
        "profile.yaml:2: admission.zzz: unknown key; known are max_requests, max_queue, "
        "max_queue_bytes"
    )


def test_missing_section_is_named(folder):
    assert refusal(folder, {"name": "test"}) == "profile.yaml:1: engines: is missing"


def test_wrong_type_says_what_was_given(folder):
    assert "decoding.draft_len: must be a valid integer, not 'four'" in refusal(
        folder, profile(decoding={"draft_len": "four"})
    )


def test_unknown_drafter_names_the_known_ones(folder):
    text = refusal(folder, profile(decoding={"drafter": "oracle"}))
    assert "decoding.drafter: 'oracle' given, these engines allow " in text


def test_text_that_is_no_yaml_is_refused(folder):
    assert refusal(folder, "name: test\nengines: [") == (
        "profile.yaml:2: is not YAML: while parsing a flow node expected the node content, but "
        "found '<stream end>'"
    )


def test_kind_that_is_unknown_names_the_known_ones(folder):
    assert refusal(folder, profile(engines=engines(kind="pytorch"))) == (
        "profile.yaml:4: engines.target.kind: unknown kind 'pytorch'; known are torch, emulated, "
        "tensorrtllm, llmapi"
    )


def test_copied_profile_says_what_its_paths_are_relative_to(folder):
    (folder / "copies").mkdir()
    text = refusal(folder / "copies", profile())
    assert text.endswith(f"; 'target' is relative to the profile's folder, {folder}/copies")
    assert "is relative" not in refusal(folder, profile(engines=engines(checkpoint="/nowhere")))


def test_empty_profile_is_refused(folder):
    assert refusal(folder, "# nothing yet\n") == (
        "profile.yaml: is empty; a profile has a name and engines.target at least"
    )


def test_absent_profile_is_refused(tmp_path):
    with pytest.raises(TandemError, match=r"absent\.yaml: No such file"):
        deployment.load(tmp_path / "absent.yaml")


def test_missing_checkpoint_is_named(folder):
    assert "engines.target.checkpoint: no folder nowhere" in refusal(
        folder, profile(engines=engines(checkpoint="nowhere"))
    )


def test_folder_that_is_no_checkpoint_is_refused(folder):
    assert "tokenizer is not a Hugging Face checkpoint: it has no config.json" in refusal(
        folder, profile(engines=engines(checkpoint="tokenizer"))
    )


def test_checkpoint_without_weights_is_refused(folder):
    (folder / "target" / "model.safetensors").unlink()
    assert "target holds no weights (*.safetensors or *.bin)" in refusal(folder, profile())


def test_missing_tokenizer_is_refused(folder):
    assert "tokenizer.folder: target has no tokenizer.json" in refusal(
        folder, profile(tokenizer={})
    )


def test_drafting_ahead_is_where_it_pays_and_that_is_on_two_devices(folder):
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


def test_vocabularies_that_differ_are_refused_by_name(folder):
    write_tokenizer(folder / "draft", size=280)
    text = refusal(folder, profile())
    assert "engines.draft.checkpoint: token '" in text
    assert text.endswith("draft and target must share one vocabulary")


def test_checkpoint_narrower_than_the_tokenizer_is_refused(folder):
    write_empty(folder / "draft", 280)
    assert "engines.draft.checkpoint: vocab_size 280 in draft is less than the 300" in refusal(
        folder, profile()
    )


def test_cache_smaller_than_one_sequence_is_refused(folder):
    assert "kv_cache_tokens: 512 is less than one sequence of max_seq_len 1024" in refusal(
        folder, profile(engines=engines(kv_cache_tokens=512))
    )


def test_sequences_longer_than_the_checkpoint_allows_are_refused(folder):
    assert "engines.target.max_seq_len: 2048 is over the 1024 positions of target" in refusal(
        folder, profile(engines=engines(max_seq_len=2048))
    )


def test_draft_may_see_less_than_the_target(folder):
    short = profile()
    short["engines"]["draft"]["max_seq_len"] = 512
    settings = load(folder, short).loop_settings()
    assert (settings.target.max_seq_len, settings.draft.max_seq_len) == (1024, 512)


def test_draft_engine_that_verifies_drafts_is_refused(folder):
    wrong = profile()
    wrong["engines"]["draft"]["max_draft_len"] = 4
    assert "engines.draft.max_draft_len: unknown key" in refusal(folder, wrong)


def test_what_an_engine_refuses_is_refused_before_it_starts(folder):
    assert "engines.target: max_batch_tokens (8) must exceed max_draft_len (8)" in refusal(
        folder, profile(engines=engines(max_batch_tokens=8))
    )


def test_draft_len_that_leaves_no_room_for_text_is_refused(folder):
    assert "max_draft_len: 1023 leaves no room for text in max_seq_len 1024" in refusal(
        folder, profile(engines=engines(max_draft_len=1023))
    )


def test_missing_end_of_sequence_is_refused(folder):
    write_empty(folder / "target", 300, eos_token_id=None)
    (folder / "tokenizer" / "tokenizer_config.json").write_text("{}")
    assert "nothing in target says which token ends an answer" in refusal(folder, profile())


def test_own_checkpoints_need_no_profile(folder):
    write_tokenizer(folder / "target")
    planned = deployment.for_checkpoints(folder / "target", folder / "draft")
    assert planned.loop_settings().drafter == "draft_model"


def test_wrong_own_checkpoint_names_the_option(folder):
    write_tokenizer(folder / "target")
    with pytest.raises(TandemError, match="--draft: no folder"):
        deployment.for_checkpoints(folder / "target", folder / "nowhere")


def test_draft_len_may_follow_what_drafts_earn(folder):
    settings = load(folder, profile(decoding={"draft_len": "auto"})).loop_settings()
    assert settings.draft_len == AUTO
    assert settings.draft_stops_when_unsure


@pytest.mark.parametrize("draft_len", [0, -1])
def test_draft_len_is_at_least_one_or_auto(folder, draft_len):
    text = refusal(folder, profile(decoding={"draft_len": draft_len}))
    assert "decoding.draft_len: must be at least 1, or auto" in text


def test_target_knows_the_drafts_width_where_their_padding_differs(folder):
    assert "draft_vocab_size" not in load(folder, profile()).target.parameters
    write_empty(folder / "draft", 320)
    assert load(folder, profile()).target.parameters["draft_vocab_size"] == "320"


def test_each_engines_cache_is_counted_apart(folder):
    small = profile()
    small["engines"]["target"]["kv_cache_tokens"] = 4096
    small["engines"]["draft"] |= {"kv_cache_tokens": 1024, "kv_block_tokens": 16}
    settings = load(folder, small).loop_settings()
    target, draft = settings.target, settings.draft
    assert (target.kv_cache_tokens, target.kv_block_tokens, target.kv_blocks) == (4096, 32, 128)
    assert (draft.kv_cache_tokens, draft.kv_block_tokens, draft.kv_blocks) == (1024, 16, 64)
    assert settings.draft_kv_blocks == 64


def test_each_engine_has_the_profiles_timeout(folder):
    settings = load(folder, profile(timeouts={"target": 3.0, "draft": 2.0})).loop_settings()
    assert (settings.target.timeout, settings.draft.timeout) == (3.0, 2.0)


def test_settings_answer_for_a_draft_that_is_not_there(folder):
    settings = load(folder, profile(engines=engines())).loop_settings()
    assert settings.draft_kv_blocks == 0
    assert settings.draft_logits_tell_all
    assert not settings.draft_stops_when_unsure
    assert not settings.shared_logits


def test_longest_text_follows_from_the_tokenizer_unless_the_profile_wants_less(folder):
    planned = load(folder, profile())
    fits = planned.tokenizer.longest_token_bytes * 1024
    assert planned.max_text_bytes == fits
    for limit, expected in ((fits + 1, fits), (fits - 1, fits - 1)):
        planned = load(folder, profile(limits={"max_text_bytes": limit}))
        told = planned.loop_settings(), planned.tokenizer_settings()
        told += (planned.forwarder_settings(planned.stream_entry),)
        assert [settings.max_text_bytes for settings in told] == [expected] * 3


def test_limits_of_a_request_are_the_profiles(folder):
    limits = {"max_words": 2, "max_words_bytes": 3, "max_ngram_size": 4, "max_logits_bytes": 0}
    planned = load(folder, profile(limits=limits, admission={"max_queue_bytes": 5}))
    settings = planned.loop_settings()
    assert {name: getattr(settings, name) for name in limits} == limits
    assert settings.max_queue_bytes == 5
    for told in (planned.tokenizer_settings(), planned.forwarder_settings(planned.stream_entry)):
        assert (told.max_words, told.max_words_bytes) == (2, 3)


def test_loops_share_what_the_profile_admits(folder):
    planned = load(folder, profile(instances=2, admission={"max_queue_bytes": 5}))
    settings = planned.loop_settings()
    assert (settings.instances, settings.max_requests, settings.max_queue) == (2, 64, 64)
    assert (settings.max_queue_bytes, settings.max_queue_bytes_each) == (5, 2)
    assert planned.thread_pool_size == load(folder, profile()).thread_pool_size


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


def test_tokenizer_models_know_how_long_a_sequence_is(folder):
    planned = load(folder, profile())
    assert planned.tokenizer_settings().max_seq_len == 1024
    assert planned.detokenizer_settings().max_seq_len == 1024


def test_more_words_than_are_read_of_one_tensor_are_refused(folder):
    assert load(folder, profile(limits={"max_words": 2048}))
    assert refusal(folder, profile(limits={"max_words": 2049})) == (
        "profile.yaml:8: limits.max_words: 2049 for each of 32 prompts (max_batch_size) is over "
        "65536 in one tensor; lower either"
    )


def test_ngrams_over_the_limit_of_a_request_are_refused(folder):
    lookup = {"prompt_lookup": {"max_matching_ngram_size": 9}}
    assert (
        "decoding.prompt_lookup.max_matching_ngram_size: 9 is over limits.max_ngram_size, which "
        "is 8; lower the one or raise the other"
    ) in refusal(folder, profile(decoding=lookup))


def test_padding_may_differ_as_that_of_qwens_sizes_does(folder):
    write_empty(folder / "target", 152_064)
    write_empty(folder / "draft", 151_936)
    planned = load(folder, profile())
    assert planned.target.parameters["draft_vocab_size"] == "151936"
    settings = planned.loop_settings()
    assert (settings.target.vocab_size, settings.draft.vocab_size) == (152_064, 151_936)


def test_own_checkpoints_are_checked_before_their_weights_are_there(folder):
    write_tokenizer(folder / "target")
    (folder / "target" / "model.safetensors").unlink()
    planned = deployment.for_checkpoints(folder / "target", None, name="mine", with_weights=False)
    assert (planned.profile.name, planned.drafters) == ("mine", ("prompt_lookup", "none"))
    with pytest.raises(TandemError, match=r"--target: .* holds no weights"):
        deployment.for_checkpoints(folder / "target", None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "architecture 'T5ForConditionalGeneration' is not a decoder-only language model",
        ),
        ({"architectures": ["BertModel"]}, "architecture 'BertModel' is not a decoder-only"),
        (
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            "architecture 'mamba' has no attention",
        ),
        (
            {"model_type": "qwen3_next", "layer_types": ["full_attention", "linear_attention"]},
            "architecture 'qwen3_next' has layers of type 'linear_attention'",
        ),
    ],
)
def test_architecture_that_is_not_served_is_refused_before_it_is_loaded(folder, config, said):
    write_empty(folder / "target", 300, **config)
    assert said in refusal(folder, profile())


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]},
    ],
)
def test_architecture_that_is_served_is_not_refused(folder, config):
    write_empty(folder / "target", 300, **config)
    assert load(folder, profile()).target.vocab_size == 300
