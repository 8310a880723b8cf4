"""`preprocessing` converts tensors of text to ids."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from tokenizer_kinds import KINDS, byte_level, write

from tandem.contract import preprocessing as tensors
from tandem.preprocessing.preprocessor import Preprocessor, TokenizerSettings
from tandem.preprocessing.tokenizer import InputError

WIDTH = 512


def strings(*rows):
    return np.array(rows, dtype=object)


def request(*prompts, **more):
    inputs = {
        tensors.QUERY: strings(*([prompt] for prompt in prompts)),
        tensors.REQUEST_OUTPUT_LEN: np.array([[9]] * len(prompts), np.int32),
    }
    return inputs | more


def preprocessor_of(tokenizer, *, special=False):
    chosen = TokenizerSettings(
        ".", add_special_tokens=special, vocab_size=WIDTH, end_id=2, pad_id=7
    )
    return Preprocessor(tokenizer, chosen)


@pytest.fixture
def preprocessor():
    return preprocessor_of(byte_level())


def ids(text):
    return byte_level().encode(text).ids


def test_prompts_are_padded_to_the_longest_prompt(preprocessor):
    outputs = preprocessor.answer(
        request(b"The dog", b"fox"), [tensors.INPUT_ID, tensors.REQUEST_INPUT_LEN]
    )
    long, short = ids("The dog"), ids("fox")
    padding = [7] * (len(long) - len(short))
    assert outputs[tensors.INPUT_ID].tolist() == [long, short + padding]
    assert outputs[tensors.INPUT_ID].dtype == np.int32
    assert outputs[tensors.REQUEST_INPUT_LEN].tolist() == [[len(long)], [len(short)]]


def test_predictions_get_no_special_tokens_and_are_padded_separately(preprocessor):
    texts = np.array([[b"The dog"], [b""]], object)
    inputs = request(b"fox", b"fox", PREDICTION=texts)
    outputs = preprocessor.answer(inputs, [tensors.PREDICTION_IDS])
    long = byte_level().encode("The dog", add_special_tokens=False).ids
    assert outputs[tensors.PREDICTION_IDS].tolist() == [long, [-1] * len(long)]


def test_padding_uses_the_prompts_pad_id(preprocessor):
    pads = np.array([[3], [4]], np.int32)
    outputs = preprocessor.answer(request(b"The dog", b"", PAD_ID=pads), [tensors.INPUT_ID])
    assert set(outputs[tensors.INPUT_ID][1].tolist()) == {4}


def test_an_empty_prompt_has_no_ids(preprocessor):
    outputs = preprocessor.answer(request(b""), [tensors.INPUT_ID, tensors.REQUEST_INPUT_LEN])
    assert outputs[tensors.INPUT_ID].shape == (1, 0)
    assert outputs[tensors.REQUEST_INPUT_LEN].tolist() == [[0]]


def test_only_requested_outputs_are_returned(preprocessor):
    assert list(preprocessor.answer(request(b"a"), [tensors.REQUEST_INPUT_LEN])) == [
        tensors.REQUEST_INPUT_LEN
    ]


def test_word_lists_have_width_0_if_no_words_are_given(preprocessor):
    outputs = preprocessor.answer(request(b"a", b"b"), tensors.OUTPUTS)
    shapes = {name: array.shape for name, array in outputs.items()}
    assert shapes[tensors.BAD_WORDS_IDS] == (2, 2, 0)
    assert shapes[tensors.STOP_WORDS_IDS] == (2, 2, 0)
    assert shapes[tensors.EMBEDDING_BIAS] == (2, 0)


def test_every_output_has_the_declared_type(preprocessor):
    types = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64}
    declared = {str(tensor): tensor.dtype for tensor in tensors.OUTPUTS}
    given = request(
        b"a",
        BAD_WORDS_DICT=strings([b"dog"]),
        STOP_WORDS_DICT=strings([b"fox"]),
        EMBEDDING_BIAS_WORDS=strings([b"dog"]),
        EMBEDDING_BIAS_WEIGHTS=np.array([[1.5]], np.float32),
        PROMPT_TABLE_EXTRA_ID=np.array([[1]], np.uint64),
    )
    for name, array in preprocessor.answer(given, tensors.OUTPUTS).items():
        assert array.dtype == types[declared[name]], name


def test_words_are_encoded_as_word_lists_and_a_bias(preprocessor):
    outputs = preprocessor.answer(
        request(
            b"a",
            BAD_WORDS_DICT=strings([b"dog", b""]),
            STOP_WORDS_DICT=strings([b"fox", b""]),
            EMBEDDING_BIAS_WORDS=strings([b"lazy"]),
            EMBEDDING_BIAS_WEIGHTS=np.array([[1.5]], np.float32),
        ),
        tensors.OUTPUTS,
    )
    assert outputs[tensors.BAD_WORDS_IDS][0, 0].tolist() == ids("dog") + ids(" dog")
    assert outputs[tensors.STOP_WORDS_IDS][0, 0].tolist() == ids("fox")
    assert outputs[tensors.EMBEDDING_BIAS].shape == (1, WIDTH)
    assert set(np.flatnonzero(outputs[tensors.EMBEDDING_BIAS][0])) == set(ids("lazy"))


def test_end_and_pad_ids_default_to_the_deployments(preprocessor):
    outputs = preprocessor.answer(request(b"a", b"b"), [tensors.OUT_END_ID, tensors.OUT_PAD_ID])
    assert outputs[tensors.OUT_END_ID].tolist() == [[2], [2]]
    assert outputs[tensors.OUT_PAD_ID].tolist() == [[7], [7]]


def test_ids_and_output_lengths_of_the_request_are_passed_on(preprocessor):
    given = request(b"a", END_ID=np.array([[5]], np.int32), PAD_ID=np.array([[6]], np.int32))
    outputs = preprocessor.answer(given, tensors.OUTPUTS)
    assert outputs[tensors.OUT_END_ID].tolist() == [[5]]
    assert outputs[tensors.OUT_PAD_ID].tolist() == [[6]]
    assert outputs[tensors.OUT_REQUEST_OUTPUT_LEN].tolist() == [[9]]


def test_the_decoder_input_is_the_decoder_query_or_the_pad_id(preprocessor):
    wanted = [tensors.DECODER_INPUT_ID, tensors.REQUEST_DECODER_INPUT_LEN]
    without = preprocessor.answer(request(b"a"), wanted)
    assert [array.tolist() for array in without.values()] == [[[7]], [[1]]]
    with_query = preprocessor.answer(request(b"a", DECODER_QUERY=strings([b"fox"])), wanted)
    assert with_query[tensors.DECODER_INPUT_ID].tolist() == [ids("fox")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"QUERY": strings([b"a\xff"])}, "QUERY must be UTF-8; got byte 0x.. at position 1"),
        (
            {"BAD_WORDS_DICT": strings([b"\xc3"])},
            "BAD_WORDS_DICT must be UTF-8; got byte 0x.. at position 0",
        ),
        (
            {"STOP_WORDS_DICT": strings([b"\x80"])},
            "STOP_WORDS_DICT must be UTF-8; got byte 0x.. at position 0",
        ),
        (
            {"DECODER_QUERY": strings([b"\x80"])},
            "DECODER_QUERY must be UTF-8; got byte 0x.. at position 0",
        ),
        ({"QUERY": strings([b"a", b"b"])}, r"QUERY must have shape \[1, 1\]; got \[1, 2\]"),
        (
            {"STOP_WORDS_DICT": strings([b"a"], [b"b"])},
            "STOP_WORDS_DICT must have 1 rows, one per prompt; got 2",
        ),
        (
            {"IMAGE_URL": strings([b"http://x"])},
            "IMAGE_URL isn't supported: this model accepts text only",
        ),
        (
            {"EMBEDDING_BIAS_WORDS": strings([b"a"])},
            "EMBEDDING_BIAS_WEIGHTS must have one value per item of EMBEDDING_BIAS_WORDS",
        ),
        (
            {
                "EMBEDDING_BIAS_WORDS": strings([b"a"]),
                "EMBEDDING_BIAS_WEIGHTS": np.array([[np.nan]], np.float32),
            },
            "EMBEDDING_BIAS_WEIGHTS must not be NaN",
        ),
    ],
)
def test_the_error_names_the_invalid_tensor(preprocessor, given, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        preprocessor.answer(request(b"a") | given, tensors.OUTPUTS)


@pytest.mark.parametrize("name", [tensors.QUERY, tensors.REQUEST_OUTPUT_LEN])
def test_the_error_names_a_missing_tensor(preprocessor, name):
    inputs = request(b"a")
    del inputs[name]
    with pytest.raises(InputError, match=f"^{name} is missing$"):
        preprocessor.answer(inputs, tensors.OUTPUTS)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@given(prompts=st.lists(st.text(), min_size=1, max_size=4))
def test_any_text_is_unchanged_after_encoding_and_decoding(kind, prompts):
    tokenizer = KINDS[kind]()
    outputs = preprocessor_of(tokenizer).answer(
        request(*(prompt.encode() for prompt in prompts)), tensors.OUTPUTS
    )
    rows = zip(outputs[tensors.INPUT_ID], outputs[tensors.REQUEST_INPUT_LEN], strict=True)
    texts = [
        tokenizer.decode(row[:size].tolist(), skip_special_tokens=False) for row, (size,) in rows
    ]
    # The Llama 2 tokenizer encodes spaces as U+2581, so U+2581 in the text becomes a space.
    assert texts == [
        prompt if kind == "byte_level" else prompt.replace("▁", " ") for prompt in prompts
    ]


def test_the_tokenizer_folder_is_relative_to_the_version_folder(tmp_path: Path):
    write(byte_level(), tmp_path / "tokenizer")
    chosen = TokenizerSettings(
        "tokenizer", add_special_tokens=True, vocab_size=9, end_id=0, pad_id=0
    )
    loaded = Preprocessor.load(chosen, tmp_path)
    assert loaded.answer(request(b"fox"), [tensors.INPUT_ID])[tensors.INPUT_ID].tolist() == [
        ids("fox")
    ]


def limited(**limits):
    settings = TokenizerSettings(
        ".", add_special_tokens=False, vocab_size=WIDTH, end_id=2, pad_id=7, **limits
    )
    return Preprocessor(byte_level(), settings)


def test_a_stop_word_that_is_one_special_token_is_marked(preprocessor):
    words = strings([b"</s>", b"fox", b"<s>"], [b"</s></s>", b"<tool call>", b""])
    outputs = preprocessor.answer(
        request(b"a", b"b", STOP_WORDS_DICT=words), [tensors.SPECIAL_STOP_IDS]
    )
    end, begin = (byte_level().token_to_id(token) for token in ("</s>", "<s>"))
    found = outputs[tensors.SPECIAL_STOP_IDS]
    assert found.tolist() == [[end, -1, begin], [-1, -1, -1]]
    assert found.dtype == np.int32


def test_without_stop_words_no_word_is_marked_as_special(preprocessor):
    outputs = preprocessor.answer(request(b"a", b"b"), [tensors.SPECIAL_STOP_IDS])
    assert outputs[tensors.SPECIAL_STOP_IDS].shape == (2, 0)


@pytest.mark.parametrize("name", [tensors.QUERY, tensors.DECODER_QUERY])
def test_a_text_with_too_many_bytes_is_rejected(name):
    short, long = ({name: strings([text.encode()])} for text in ("é" * 5, "é" * 5 + "x"))
    wanted = [tensors.INPUT_ID, tensors.DECODER_INPUT_ID]
    assert limited(max_text_bytes=10).answer(request(b"a") | short, wanted)
    with pytest.raises(InputError, match=f"^{name} has 11 bytes; the limit is 10$"):
        limited(max_text_bytes=10).answer(request(b"a") | long, wanted)


def test_a_text_is_rejected_if_its_prefix_has_too_many_tokens():
    text = "æ" * 64
    assert len(ids(text)) == 128
    short = limited(max_seq_len=4)
    whole = short.answer(request(text.encode()), [tensors.REQUEST_INPUT_LEN])
    assert whole[tensors.REQUEST_INPUT_LEN].tolist() == [[128]]
    with pytest.raises(
        InputError,
        match=r"^QUERY has 128 tokens in the first 64 of its 65 characters; the limit is 4$",
    ):
        short.answer(request(text.encode() + b"x"), [tensors.INPUT_ID])


def test_a_text_whose_prefix_fits_is_tokenized_completely():
    text = "<tool call>" * 50
    outputs = limited(max_seq_len=20).answer(request(text.encode()), [tensors.INPUT_ID])
    assert outputs[tensors.INPUT_ID].tolist() == [ids(text)]
    assert len(ids(text)) == 50


WORD_LISTS = [tensors.STOP_WORDS_DICT, tensors.BAD_WORDS_DICT, tensors.EMBEDDING_BIAS_WORDS]


@pytest.mark.parametrize("name", WORD_LISTS, ids=str)
def test_too_many_words_are_rejected(name):
    three = limited(max_words=3)
    given = {name: strings([b"x"] * 3)}
    if name == tensors.EMBEDDING_BIAS_WORDS:
        given[tensors.EMBEDDING_BIAS_WEIGHTS] = np.ones((1, 3), np.float32)
    assert three.answer(request(b"a", **given), [tensors.INPUT_ID])
    with pytest.raises(InputError, match=f"^{name} has 4 words per prompt; the limit is 3$"):
        three.answer(request(b"a", **{name: strings([b"x"] * 4)}), [tensors.INPUT_ID])


def test_the_word_limit_applies_per_prompt():
    words = strings([b"x"] * 3, [b"x"] * 3)
    batch = request(b"a", b"b", STOP_WORDS_DICT=words)
    assert limited(max_words=3).answer(batch, [tensors.INPUT_ID])
    with pytest.raises(InputError, match="3 words per prompt; the limit is 2"):
        limited(max_words=2).answer(batch, [tensors.INPUT_ID])


def test_words_with_too_many_bytes_are_rejected():
    few = limited(max_words_bytes=8)
    words = {name: strings([b"xxxx"]) for name in WORD_LISTS[:2]}
    assert few.answer(request(b"a", **words), [tensors.INPUT_ID])
    words[tensors.BAD_WORDS_DICT] = strings([b"xxxxx"])
    with pytest.raises(
        InputError, match=r"^STOP_WORDS_DICT and BAD_WORDS_DICT: 9 bytes in total; the limit is 8$"
    ):
        few.answer(request(b"a", **words), [tensors.INPUT_ID])


def test_memory_is_freed_after_a_long_text(tmp_path):
    """The test uses a new process, because free memory of this process would hide the effect."""
    folder = write(byte_level(), tmp_path)
    program = f"""
import numpy as np
from pathlib import Path
from tandem.preprocessing.preprocessor import Preprocessor, TokenizerSettings

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024

settings = TokenizerSettings({str(folder)!r}, False, 512, 2, 7)
preprocessor = Preprocessor.load(settings, Path())
text = np.array([["the lazy dog".encode() * 200_000]], object)
before = resident()
inputs = {{"QUERY": text, "REQUEST_OUTPUT_LEN": np.array([[9]])}}
preprocessor.answer(inputs, ["REQUEST_INPUT_LEN"])
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
print(peak - before, resident() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    peak, kept = map(int, done.stdout.split())
    assert peak > 100
    assert kept < peak / 4
