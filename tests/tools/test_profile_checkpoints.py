"""Checkpoints and tokenizers in a profile must exist, be supported and be compatible."""

import json

import pytest
from checkpoints import write_empty, write_tokenizer
from profile_files import engines, load, profile, rejection

from tandem.bls.settings import DraftTokenizer
from tandem.tools.profiles.checkpoint import checkpoint_files
from tandem.tools.triton import repository


def test_end_ids_are_read_from_the_generation_config(folder):
    ids = json.dumps({"eos_token_id": [3, 5]})
    (folder / "target" / "generation_config.json").write_text(ids)
    assert load(folder, profile()).end_ids == (3, 5)


def test_the_tokenizer_provides_the_end_id_if_the_checkpoint_has_none(folder):
    write_empty(folder / "target", 300, eos_token_id=None)
    assert load(folder, profile()).end_ids == (0,)


def test_max_seq_len_of_gpt2_is_read_from_n_positions(folder):
    write_empty(folder / "target", 300, max_position_embeddings=None, n_positions=512)
    assert load(folder, profile()).target.max_seq_len == 512


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ({"checkpoint": "nowhere"}, "engines.target.checkpoint: no folder nowhere"),
        ({"checkpoint": "tokenizer"}, "tokenizer isn't a Hugging Face checkpoint: it has no conf"),
        ({"kv_cache_tokens": 512}, "must be at least max_seq_len (1024); got 512"),
        ({"max_seq_len": 2048}, "engines.target.max_seq_len: must be at most 1024"),
        ({"max_batch_tokens": 8}, "max_batch_tokens must be greater than max_draft_len (8); got 8"),
        ({"max_draft_len": 1023}, "must be less than max_seq_len 1024; got 1023"),
    ],
)
def test_a_target_that_cannot_be_served_is_rejected(folder, target, line):
    assert line in rejection(folder, profile(engines=engines(**target)))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config", [], "config.json' must be a JSON object"),
        ("config", {"pretrained_config": 5}, "pretrained_config in target/config.json must be a"),
        ("config", {"vocab_size": "x"}, "vocab_size in target/config.json must be an integer; got"),
        ("config", {"vocab_size": None}, "config.json has no vocab_size"),
        ("config", {"vocab_size": 300, "num_hidden_layers": "x"}, "num_hidden_layers in target/"),
        ("config", {"vocab_size": 300, "num_attention_heads": [1]}, "num_attention_heads in targ"),
        ("config", {"vocab_size": 300, "n_positions": "x"}, "n_positions in target/config.json"),
        ("config", {"vocab_size": 300, "architectures": 5}, "architectures in target/config.json"),
        ("config", {"vocab_size": 300, "layer_types": 5}, "layer_types in target/config.json must"),
        ("config", {"vocab_size": 300, "layer_types": [[]]}, "it has layers of type '[]'"),
        ("generation_config", [1], "generation_config.json' must be a JSON object"),
        ("generation_config", {"eos_token_id": "x"}, "eos_token_id in target must be a token id"),
        ("generation_config", {"eos_token_id": [[1]]}, "eos_token_id in target must be a token"),
        ("generation_config", {"eos_token_id": True}, "eos_token_id in target must be a token id"),
    ],
)
def test_wrong_types_in_a_checkpoint_are_reported(folder, name, content, reason):
    (folder / "target" / f"{name}.json").write_text(json.dumps(content))
    assert reason in rejection(folder, profile())


def test_a_special_token_of_the_wrong_type_is_ignored(folder):
    write_empty(folder / "target", 300, eos_token_id=3)
    (folder / "tokenizer" / "tokenizer_config.json").write_text('{"pad_token": [1]}')
    assert load(folder, profile()).pad_id == 3


def test_a_checkpoint_without_weights_is_rejected(folder):
    (folder / "target" / "model.safetensors").unlink()
    assert rejection(folder, profile()).endswith("target has no weights (*.safetensors)")


def test_pickled_weights_are_rejected_because_they_can_run_code(folder):
    weights = folder / "target" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    assert "pytorch_model.bin is a pickle file, which can run code" in rejection(folder, profile())


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "pytorch_model.bin"])
def test_an_index_cannot_add_other_files_to_a_repository(folder, name):
    (folder / "secret").write_text("secret")
    (folder / "target" / "pytorch_model.bin").touch()
    index = folder / "target" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    assert rejection(folder, profile()).endswith(
        f"names {name!r}, which isn't a safetensors file in it"
    )
    (folder / "target" / "model.safetensors").unlink()
    assert {path.suffix for path in checkpoint_files(folder / "target")} == {".json"}


def test_a_checkpoint_without_one_of_its_files_is_rejected(folder):
    target = folder / "target"
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (target / "model.safetensors").rename(target / names[0])
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    assert rejection(folder, profile()).endswith(
        f"target lacks {names[1]}, which model.safetensors.index.json names; download it again"
    )
    (target / names[1]).touch()
    assert load(folder, profile())
    (target / names[1]).rename(target / "model.safetensors")  # is loaded instead
    assert load(folder, profile())


def test_a_missing_tokenizer_is_rejected(folder):
    assert "tokenizer.folder: target has no tokenizer.json" in rejection(
        folder, profile(tokenizer={})
    )


def test_drafts_in_another_vocabulary_are_translated(folder):
    write_empty(folder / "draft", 280, eos_token_id=7)
    write_tokenizer(folder / "draft", size=280)
    planned = load(folder, profile())
    settings = planned.loop_settings()
    assert settings.draft_tokenizer == DraftTokenizer(folder="draft_tokenizer", end_ids=(7,))
    assert not settings.draft_branches
    assert "draft_vocab_size" not in planned.target.parameters
    models = {model.name: model for model in repository.models(planned)}
    assert folder / "draft" / "tokenizer.json" in models["bls_stream"].files["draft_tokenizer"]


def test_translated_drafts_have_no_logits(folder):
    write_tokenizer(folder / "draft", size=280)
    text = rejection(folder, profile(decoding={"use_draft_logits": True}))
    assert "decoding.use_draft_logits: must be false: token '" in text
    assert text.endswith("so the draft's logits don't fit the target's vocabulary")


def test_a_target_with_a_different_tokenizer_is_rejected(folder):
    write_tokenizer(folder / "target", size=280)
    text = rejection(folder, profile())
    assert "engines.target.checkpoint: token '" in text
    assert text.endswith("the target must have the vocabulary of tokenizer.folder")


def test_a_vocabulary_smaller_than_the_tokenizer_is_rejected(folder):
    write_empty(folder / "draft", 280)
    assert "engines.draft.checkpoint: vocab_size in draft must be at least 300" in rejection(
        folder, profile()
    )


@pytest.mark.parametrize(
    ("token_id", "reason"),
    [
        (300, "vocab_size in target must be at least 301, the tokens of tokenizer; got 300"),
        (5, "token '<new>' has id 5 in tokenizer_config.json but 300 in tokenizer.json"),
        ("x", "added_tokens_decoder in 'tokenizer/tokenizer_config.json' must be an object with"),
    ],
)
def test_tokens_that_only_the_tokenizer_config_adds_are_checked(folder, token_id, reason):
    added = {"added_tokens_decoder": {token_id: {"content": "<new>", "special": True}}}
    path = folder / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | added))
    assert reason in rejection(folder, profile())


@pytest.mark.parametrize("end_id", [300, -1, [0, 300]])
def test_an_end_id_outside_the_vocabulary_is_rejected(folder, end_id):
    write_empty(folder / "target", 300, eos_token_id=end_id)
    wrong = end_id if isinstance(end_id, int) else end_id[-1]
    assert (
        "engines.target.checkpoint: eos_token_id in the configuration of target must be between 0 "
        f"and 299; got {wrong}"
    ) in rejection(folder, profile())


def test_the_error_for_an_end_id_names_the_tokenizer_folder_if_it_is_from_there(folder):
    write_empty(folder / "target", 300, eos_token_id=None)
    (folder / "tokenizer" / "generation_config.json").write_text('{"eos_token_id": 300}')
    assert "eos_token_id in the configuration of tokenizer must be between 0" in rejection(
        folder, profile()
    )


def test_a_checkpoint_without_an_end_of_sequence_is_rejected(folder):
    write_empty(folder / "target", 300, eos_token_id=None)
    (folder / "tokenizer" / "tokenizer_config.json").write_text("{}")
    assert "no end-of-sequence token in target" in rejection(folder, profile())


def test_the_target_gets_the_draft_vocab_size_if_padding_differs(folder):
    assert "draft_vocab_size" not in load(folder, profile()).target.parameters
    write_empty(folder / "draft", 320)
    planned = load(folder, profile())
    assert planned.target.parameters["draft_vocab_size"] == "320"
    settings = planned.loop_settings()
    assert (settings.target.vocab_size, settings.draft.vocab_size) == (300, 320)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "architecture 'T5ForConditionalGeneration' isn't a decoder-only language model",
        ),
        ({"architectures": ["BertModel"]}, "architecture 'BertModel' isn't a decoder-only"),
        (
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            "architecture 'mamba' isn't supported: it has no attention",
        ),
        (
            {"model_type": "qwen3_next", "layer_types": ["full_attention", "linear_attention"]},
            "'qwen3_next' isn't supported: it has layers of type 'linear_attention'",
        ),
    ],
)
def test_an_unsupported_architecture_is_rejected_before_loading(folder, config, said):
    write_empty(folder / "target", 300, **config)
    assert said in rejection(folder, profile())


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]},
    ],
)
def test_supported_architectures_are_accepted(folder, config):
    write_empty(folder / "target", 300, **config)
    assert load(folder, profile()).target.vocab_size == 300
