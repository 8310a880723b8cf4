"""A loaded tokenizer gives the same ids as transformers."""

import json

import pytest
from error_lines import error_line
from tokenizer_kinds import byte_fallback, byte_level, write
from tokenizers import Tokenizer, decoders, models, normalizers

from tandem.preprocessing.tokenizer import (
    TokenizerError,
    load_tokenizer,
    longest_token_bytes,
    special_token_ids,
)

TEXT = "The quick <s> 😀 fox</s> jumps."
CONFIGS = [
    {},
    {"bos_token": "<s>", "eos_token": "</s>"},
    {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True},
    {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True},
    {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True},
    {"bos_token": {"__type": "AddedToken", "content": "<s>"}, "add_bos_token": True},
    {"eos_token": "</s>", "additional_special_tokens": ["<unk>"]},
]


@pytest.fixture
def plain(tmp_path):
    """A folder with a tokenizer.json without special tokens."""
    state = json.loads(byte_level().to_str())
    state["added_tokens"] = []
    return write(Tokenizer.from_str(json.dumps(state)), tmp_path / "plain")


def configure(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_token_ids_equal_transformers(tmp_path, make, config):
    transformers = pytest.importorskip("transformers")
    folder = write(make(), tmp_path, tokenizer_class="PreTrainedTokenizerFast", **config)
    assert_same(load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder))


def assert_same(ours, theirs):
    for special in (True, False):
        expected = theirs(TEXT, add_special_tokens=special)["input_ids"]
        assert ours.encode(TEXT, add_special_tokens=special).ids == expected
        text = theirs.decode(expected, skip_special_tokens=special)
        assert ours.decode(expected, skip_special_tokens=special) == text


def test_tokens_named_in_the_config_become_special(plain):
    configure(plain, eos_token="</s>", bos_token={"content": "<s>"})
    assert special_token_ids(load_tokenizer(plain)) == {1, 2}


def test_the_special_tokens_map_adds_special_tokens(plain):
    (plain / "special_tokens_map.json").write_text('{"eos_token": "</s>"}')
    assert special_token_ids(load_tokenizer(plain)) == {2}


def test_a_special_token_without_an_id_is_ignored(plain):
    before = load_tokenizer(plain).get_vocab_size()
    assert load_tokenizer(configure(plain, pad_token="[PAD]")).get_vocab_size() == before


def test_configured_tokens_are_added_with_their_ids(plain):
    size = load_tokenizer(plain).get_vocab_size()
    tokens = {
        str(size + 1): {"content": "<|b|>", "special": False},
        str(size): {"content": "<|a|>", "special": True},
    }
    tokenizer = load_tokenizer(configure(plain, added_tokens_decoder=tokens))
    assert tokenizer.encode("<|b|><|a|>").ids == [size + 1, size]
    assert special_token_ids(tokenizer) == {size}


def test_configured_tokens_that_exist_change_nothing(tmp_path):
    folder = write(byte_level(), tmp_path)
    there = load_tokenizer(folder).get_added_tokens_decoder()
    tokens = {"2": {"content": "</s>", "special": True}}
    tokenizer = load_tokenizer(configure(folder, added_tokens_decoder=tokens))
    assert tokenizer.get_added_tokens_decoder() == there


def test_a_configured_token_with_a_conflicting_id_is_rejected(plain):
    tokens = {"9999": {"content": "<|a|>", "special": True}}
    with pytest.raises(TokenizerError, match=r"token '<\|a\|>' has id 9999"):
        load_tokenizer(configure(plain, added_tokens_decoder=tokens))


@pytest.mark.parametrize("tokens", [5, {"a": {}}, {"0": 5}, {"0": {"content": 5}}])
def test_configured_tokens_of_the_wrong_type_are_rejected(plain, tokens):
    with pytest.raises(TokenizerError, match=r"added_tokens_decoder in .* must be an object with"):
        load_tokenizer(configure(plain, added_tokens_decoder=tokens))


@pytest.mark.parametrize(
    "content", [r'{"bos_token": "\ud800"}', f'{{"a": {"[" * 100_000}{"]" * 100_000}}}']
)
def test_a_config_with_half_a_surrogate_pair_or_too_many_levels_is_rejected(plain, content):
    (plain / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"can't read '.*tokenizer_config\.json'"):
        load_tokenizer(plain)


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    loaded = load_tokenizer(write(tokenizer, tmp_path))
    assert loaded.encode(TEXT).ids == byte_level().encode(TEXT).ids


def test_the_error_for_a_slow_tokenizer_says_how_to_convert_it(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"")
    line = error_line(TokenizerError, load_tokenizer, tmp_path)
    assert "AutoTokenizer.from_pretrained(DIR).save_" in line


def test_the_error_names_a_missing_folder(tmp_path):
    with pytest.raises(TokenizerError, match="nowhere' doesn't exist"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]"])
def test_the_error_names_an_invalid_file_in_one_line(tmp_path, name, content):
    (write(byte_level(), tmp_path) / name).write_text(content)
    assert name in error_line(TokenizerError, load_tokenizer, tmp_path)


def test_the_longest_byte_level_token_is_measured_in_bytes():
    tokenizer = Tokenizer(models.BPE(vocab={"Ġ": 0, "ĠĠ": 1, "ĠĠĠ": 2}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    assert longest_token_bytes(tokenizer) == 3
    tokenizer.add_tokens(["世界"])
    assert longest_token_bytes(tokenizer) == 6


def test_the_longest_token_is_measured_in_utf_8_bytes():
    tokenizer = Tokenizer(models.BPE(vocab={"▁é": 0}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert longest_token_bytes(tokenizer) == 5


def test_a_normalizer_can_shorten_the_text_of_a_token():
    tokenizer = Tokenizer(models.BPE(vocab={"ab": 0}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.normalizer = normalizers.NFKC()
    assert longest_token_bytes(tokenizer) == 4 * 2


def test_the_longest_token_allows_for_unknown_words():
    assert longest_token_bytes(Tokenizer(models.WordLevel({"a": 0}, "a"))) == 256
    long = Tokenizer(models.WordLevel({"a" * 300: 0}, "a"))
    assert longest_token_bytes(long) == 300
