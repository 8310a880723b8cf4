"""`postprocessing` converts tensors of ids to text."""

from pathlib import Path

import numpy as np
import pytest
from tokenizer_kinds import byte_level, write

from tandem.contract import postprocessing as tensors
from tandem.postprocessing.detokenizer import make_detokenizer
from tandem.postprocessing.postprocessor import DetokenizerSettings, Postprocessor
from tandem.preprocessing.tokenizer import InputError

HELLO = byte_level().encode("The dog").ids
EMOJI = [byte_level().token_to_id(letter) for letter in "ðŁ¤ĸ"]  # 🤖, one id per byte


@pytest.fixture(scope="module")
def postprocessor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("version")
    write(byte_level(), folder / "tokenizer")
    settings = DetokenizerSettings("tokenizer", skip_special_tokens=True)
    return Postprocessor.load(settings, folder)


def request(tokens, lengths, context=None):
    inputs = {
        tensors.TOKENS_BATCH: np.array(tokens, np.int32),
        tensors.SEQUENCE_LENGTH: np.array(lengths, np.int32),
    }
    return inputs if context is None else inputs | {"CONTEXT_LENGTH": np.array(context, np.int32)}


def output(postprocessor, *args):
    return postprocessor.answer(request(*args), [tensors.OUTPUT])[tensors.OUTPUT].tolist()


def test_the_text_ends_at_the_sequence_length(postprocessor):
    assert output(postprocessor, [[[*HELLO, 5, 5]]], [[len(HELLO)]]) == [b"The dog"]


@pytest.mark.parametrize(("skip", "text"), [(True, b"The dog"), (False, b"The dog</s>")])
def test_special_tokens_are_shown_if_the_deployment_enables_them(tmp_path, skip, text):
    write(byte_level(), tmp_path / "tokenizer")
    shown = Postprocessor.load(DetokenizerSettings("tokenizer", skip_special_tokens=skip), tmp_path)
    ids = [*HELLO, byte_level().token_to_id("</s>")]
    answer = shown.answer(request([[ids]], [[len(ids)]]), [tensors.OUTPUT])[tensors.OUTPUT]
    assert answer.tolist() == [text]
    assert answer.dtype == object  # a fixed-width type would drop trailing zero bytes


def test_an_unfinished_character_becomes_a_replacement_character(postprocessor):
    assert output(postprocessor, [[EMOJI[:3]]], [[3]]) == ["\ufffd".encode()]


def test_beams_are_grouped_by_prompt(postprocessor):
    words = [byte_level().encode(letter).ids for letter in "abcd"]
    tokens = [[words[0], words[1]], [words[2], words[3]]]
    assert output(postprocessor, tokens, [[1, 1], [1, 1]]) == [b"a", b"b", b"c", b"d"]


def test_a_request_with_a_context_length_returns_only_the_added_text(postprocessor):
    window = [*HELLO, *EMOJI]
    size = len(HELLO)
    assert output(postprocessor, [[window]], [[size + 3]], [size]) == [b""]
    assert output(postprocessor, [[window]], [[size + 4]], [size + 3]) == ["🤖".encode()]


def test_each_prompt_has_its_own_context_length(postprocessor):
    tokens = [[HELLO, HELLO], [HELLO, HELLO]]
    lengths = [[len(HELLO)] * 2] * 2
    texts = output(postprocessor, tokens, lengths, [0, len(HELLO)])
    assert texts == [b"The dog", b"The dog", b"", b""]


def test_context_length_0_withholds_unfinished_characters(postprocessor):
    assert output(postprocessor, [[EMOJI]], [[2]], [0]) == [b""]


def test_an_empty_sequence_has_an_empty_text(postprocessor):
    assert output(postprocessor, np.empty((1, 1, 0)), [[0]]) == [b""]


@pytest.mark.parametrize(
    ("tokens", "lengths", "context", "message"),
    [
        ([[1, 2]], [[2]], None, r"^TOKENS_BATCH must have shape \[b, beams, n\]; got \[1, 2\]$"),
        (
            [[[1, 2]]],
            [2],
            None,
            r"^SEQUENCE_LENGTH must have shape \[1, 1\], as TOKENS_BATCH; got \[1\]$",
        ),
        ([[[1, 2]]], [[3]], None, r"^SEQUENCE_LENGTH must be between 0 and 2; got 3$"),
        ([[[1, 2]]], [[-1]], None, r"^SEQUENCE_LENGTH must be between 0 and 2; got -1$"),
        ([[[1, 2]]], [[1]], [2], r"^CONTEXT_LENGTH must be between 0 and 1; got 2$"),
        ([[[1, 2]]], [[1]], [-1], r"^CONTEXT_LENGTH must be between 0 and 1; got -1$"),
        ([[[1, 2]]], [[1]], [1, 1], r"^CONTEXT_LENGTH must have 1 values; got 2$"),
        ([[[1, -2]]], [[2]], None, r"^TOKENS_BATCH must not have negative ids$"),
    ],
)
def test_the_error_names_the_invalid_tensor(postprocessor, tokens, lengths, context, message):
    with pytest.raises(InputError, match=message):
        output(postprocessor, tokens, lengths, context)


@pytest.mark.parametrize("name", [tensors.TOKENS_BATCH, tensors.SEQUENCE_LENGTH])
def test_the_error_names_a_missing_tensor(postprocessor, name):
    inputs = request([[HELLO]], [[1]])
    del inputs[name]
    with pytest.raises(InputError, match=f"^{name} is missing$"):
        postprocessor.answer(inputs, [tensors.OUTPUT])


def test_the_tokenizer_folder_can_be_an_absolute_path(tmp_path):
    folder = write(byte_level(), tmp_path / "elsewhere")
    settings = DetokenizerSettings(str(folder), skip_special_tokens=True)
    loaded = Postprocessor.load(settings, Path("/nowhere"))
    assert output(loaded, [[HELLO]], [[len(HELLO)]]) == [b"The dog"]


def test_a_sequence_with_too_many_ids_is_rejected():
    short = Postprocessor(make_detokenizer(byte_level(), skip_special_tokens=True), max_seq_len=4)
    inputs = {
        tensors.TOKENS_BATCH: np.ones((1, 1, 4), np.int32),
        tensors.SEQUENCE_LENGTH: np.array([[4]], np.int32),
    }
    assert short.answer(inputs, [tensors.OUTPUT])
    inputs[tensors.TOKENS_BATCH] = np.ones((1, 1, 5), np.int32)
    with pytest.raises(InputError, match=r"^TOKENS_BATCH has 5 ids; the limit is 4$"):
        short.answer(inputs, [tensors.OUTPUT])


def lengths(postprocessor, *args):
    wanted = [tensors.OUTPUT, tensors.TEXT_LENGTHS]
    return postprocessor.answer(request(*args), wanted)[tensors.TEXT_LENGTHS].tolist()


def test_text_lengths_count_the_characters_completed_by_each_id(postprocessor):
    window = [*HELLO, *EMOJI, *HELLO]
    sizes = [len(byte_level().decode([token])) for token in HELLO]
    whole = [*sizes, 0, 0, 0, 1, *sizes]
    for context in range(len(window) + 1):
        text_lengths = lengths(postprocessor, [[window]], [[len(window)]], [context])
        text = output(postprocessor, [[window]], [[len(window)]], [context])[0].decode()
        assert text_lengths == [whole[context:]]
        assert sum(text_lengths[0]) == len(text)


def test_text_lengths_are_computed_on_request_and_padded(postprocessor):
    assert set(postprocessor.answer(request([[HELLO]], [[1]]), [tensors.OUTPUT])) == {"OUTPUT"}
    text_lengths = lengths(postprocessor, [[HELLO], [HELLO]], [[1], [2]], [0, 0])
    assert [row[1] for row in text_lengths] == [0, len(byte_level().decode([HELLO[1]]))]
