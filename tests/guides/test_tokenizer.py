"""Tokenizers are converted for llguidance, and text can't be mistaken for a special token."""

import pytest
import tokenizer_kinds
from llguidance import LLTokenizer
from tokenizers import Tokenizer, decoders, models

from tandem.guides.grammar import read_tokenizer


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_only_the_names_of_special_tokens_change(kind, tmp_path):
    tokenizer = tokenizer_kinds.KINDS[kind]()
    tokenizer_kinds.write(tokenizer, tmp_path)
    size = tokenizer.get_vocab_size()
    read, plain = read_tokenizer(tmp_path, size, [2]), LLTokenizer(tokenizer.to_str(), n_vocab=size)
    added = tokenizer.get_added_tokens_decoder().items()
    assert read.special == {t.content: i for i, t in added if plain.is_special_token(i)}
    for token in {*range(size)} - {*read.special.values()}:
        assert read.library.decode_bytes([token]) == plain.decode_bytes([token])
    assert plain.tokenize_str("fox</s>")[-1] == 2
    found = read.library.tokenize_str("fox</s>")
    assert not {*found} & {*read.special.values()}
    assert read.library.decode_bytes(found) == b"fox</s>"


def test_a_special_token_can_be_a_word_of_the_vocabulary(tmp_path):
    vocab = {piece: number for number, piece in enumerate(["<", "s", ">", "<s", "<s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("<", "s"), ("<s", ">")]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer_kinds.write(tokenizer, tmp_path)
    read = read_tokenizer(tmp_path, 5, [4])
    assert read.special == {"<s>": 4}
    assert read.library.tokenize_str("<s>") == [3, 2]


def test_other_words_can_contain_a_special_token(tmp_path):
    vocab = {piece: number for number, piece in enumerate(["<", "s", ">", "<s", "<s>", "<s><"])}
    merges = [("<", "s"), ("<s", ">"), ("<s>", "<")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer_kinds.write(tokenizer, tmp_path)
    read = read_tokenizer(tmp_path, 6, [4])
    assert read.library.tokenize_str("<s><") == [3, 2, 0]
    assert read.library.decode_bytes([5]) == b"<s><"
