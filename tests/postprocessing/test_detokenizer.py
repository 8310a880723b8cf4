"""The chunks of a stream join to the complete text, wherever the ids are split."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import KINDS, byte_fallback, byte_level, metaspace
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tandem.postprocessing.detokenizer import _byte_letters, decode_chunk, make_detokenizer
from tandem.preprocessing.tokenizer import TokenizerError

# Starts, middles and ends of characters, the three bytes of U+FFFD, and invalid bytes
BYTES = [0xF0, 0x9F, 0x98, 0x80, 0xE2, 0x82, 0xAC, 0xEF, 0xBF, 0xBD, 0xED, 0xA0, 0xC0, 0xFF, 0x41]


@cache
def detokenizer_of(kind, *, skip=True):
    return make_detokenizer(KINDS[kind](), skip_special_tokens=skip)


def stream(detokenizer, rounds):
    """Decode rounds of ids as described in the detokenizer's module; return the chunks."""
    ids, chunks, start, shown = [], [], 0, 0
    for new in rounds:
        ids += new
        text = decode_chunk(detokenizer, ids[start:], shown - start)
        if text:
            start = shown
        shown = len(ids)
        chunks.append(text)
    whole, sent = detokenizer.decode_all(ids), "".join(chunks)
    assert whole.startswith(sent)
    return [*chunks, whole[len(sent) :]]


def byte_ids(*values):
    """Return the ids of single bytes in the byte-level tokenizer."""
    return [_byte_ids()[value] for value in values]


@cache
def _byte_ids():
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    letters = {byte: chr(byte) if byte in kept else chr(next(moved)) for byte in range(256)}
    return {byte: byte_level().token_to_id(letter) for byte, letter in letters.items()}


def fallback_ids(*values):
    return [byte_fallback().token_to_id(f"<0x{value:02X}>") for value in values]


@st.composite
def rounds_of(draw, tokens):
    """Generate rounds with up to five ids each."""
    return draw(st.lists(st.lists(tokens, max_size=5), max_size=12))


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(data=st.data())
def test_chunks_join_to_the_same_text_as_the_tokenizers_library(kind, skip, data):
    tokenizer = KINDS[kind]()
    known = tokenizer.get_vocab_size()  # the drawn ids include padding ids without a token
    rounds = data.draw(rounds_of(st.integers(0, known + 3)))
    ids = [token_id for new in rounds for token_id in new]
    chunks = stream(detokenizer_of(kind, skip=skip), rounds)
    assert "".join(chunks) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@settings(max_examples=50)
@given(data=st.data())
def test_chunks_join_correctly_wherever_characters_are_split(kind, data):
    ids_of = byte_ids if kind == "byte_level" else fallback_ids
    others = [KINDS[kind]().token_to_id(token) for token in ("o", "</s>")]
    rounds = data.draw(rounds_of(st.sampled_from(ids_of(*BYTES) + others)))
    ids = [token_id for new in rounds for token_id in new]
    chunks = stream(detokenizer_of(kind), rounds)
    assert "".join(chunks) == KINDS[kind]().decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@settings(max_examples=50)
@given(text=st.text(), cuts=st.lists(st.integers(1, 5), min_size=1))
def test_chunks_of_valid_text_have_no_replacement_character(kind, text, cuts):
    text = text.replace("\ufffd", "")
    ids, rounds = KINDS[kind]().encode(text, add_special_tokens=False).ids, []
    while ids:
        size = cuts[len(rounds) % len(cuts)]
        rounds, ids = [*rounds, ids[:size]], ids[size:]
    chunks = stream(detokenizer_of(kind, skip=False), rounds)
    assert "\ufffd" not in "".join(chunks)


def test_byte_level_letters_map_to_bytes_as_in_the_library():
    library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_of = _byte_letters()
    for code in (*range(0x800), 0xFFFF, 0x10FFFF, *range(0x1000, 0xD000, 0x1000)):
        ((letters, _),) = library.pre_tokenize_str(chr(code))
        assert bytes(map(byte_of.__getitem__, letters)) == chr(code).encode()
    assert byte_of.keys() == set(library.alphabet())
    assert sorted(byte_of.values()) == list(range(256))


def test_a_character_of_several_ids_is_withheld_until_it_is_complete():
    emoji = byte_ids(*"😀".encode())
    assert stream(detokenizer_of("byte_level"), [[i] for i in emoji]) == ["", "", "", "😀", ""]


def test_an_unfinished_character_is_sent_at_the_end():
    rounds = [byte_ids(0x41, 0xF0), byte_ids(0x9F)]
    assert stream(detokenizer_of("byte_level"), rounds) == ["A", "", "\ufffd"]


def test_a_replacement_character_from_the_model_is_sent_immediately():
    rounds = [byte_ids(0xEF, 0xBF, 0xBD), byte_ids(0x41)]
    assert stream(detokenizer_of("byte_level"), rounds) == ["\ufffd", "A", ""]


def test_an_invalid_byte_is_sent_immediately():
    rounds = [byte_ids(0xFF), byte_ids(0x80), byte_ids(0x41)]
    assert stream(detokenizer_of("byte_level"), rounds) == ["\ufffd", "\ufffd", "A", ""]


def test_a_skipped_special_token_does_not_split_a_character():
    (end,) = byte_level().encode("</s>").ids
    rounds = [byte_ids(0xE2, 0x82), [end], byte_ids(0xAC)]
    assert stream(detokenizer_of("byte_level"), rounds) == ["", "", "€", ""]


def test_byte_tokens_are_withheld_until_their_text_is_final():
    euro, letter = fallback_ids(*"€".encode()), [byte_fallback().token_to_id("o")]
    detokenizer = detokenizer_of("byte_fallback")
    assert stream(detokenizer, [euro, letter]) == ["", "€o", ""]
    assert stream(detokenizer, [euro, fallback_ids(0xFF), letter]) == [
        "",
        "",
        "\ufffd" * 4 + "o",
        "",
    ]


def test_a_visible_special_token_ends_a_sequence_of_byte_tokens():
    ids = [
        byte_fallback().token_to_id("o"),
        *fallback_ids(0xFF),
        byte_fallback().token_to_id("</s>"),
    ]
    assert detokenizer_of("byte_fallback", skip=False).decode_complete(ids).endswith("</s>")
    assert detokenizer_of("byte_fallback", skip=True).decode_complete(ids) == "o"


@pytest.mark.parametrize("make", [byte_fallback, metaspace])
def test_a_decoder_that_strips_removes_only_the_first_space(make):
    tokenizer = make()
    first, second = (tokenizer.encode(word).ids for word in ("fox", "dog"))
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=True)
    assert stream(detokenizer, [first, second, second]) == ["fox", " dog", " dog", ""]


def test_each_chunk_decodes_at_most_two_rounds_of_ids():
    ids, windows = byte_level().encode("The quick brown fox jumps over the lazy dog.").ids, []

    class Recorder:
        decode_all = detokenizer_of("byte_level").decode_all

        def decode_complete(self, window):
            windows.append(len(window))
            return detokenizer_of("byte_level").decode_complete(window)

    stream(Recorder(), [ids[i : i + 2] for i in range(0, len(ids), 2)])
    assert max(windows) == 4


def test_a_decoder_that_mixes_byte_level_with_others_is_rejected():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    with pytest.raises(TokenizerError, match="both ByteLevel and Strip"):
        make_detokenizer(tokenizer, skip_special_tokens=True)


def test_a_byte_level_decoder_inside_a_sequence_is_supported():
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=True)
    assert detokenizer.decode_complete(byte_ids(0x41, 0xE2)) == "A"
