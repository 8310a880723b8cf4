"""`preprocessing` as Triton calls it: every request of a batch has its own answer."""

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from tokenizer_kinds import byte_level
from tokenizer_models import arrays, error, load, request

from tandem.contract.strings import Strings
from tandem.preprocessing.settings import TokenizerSettings

SETTINGS = TokenizerSettings(
    "tokenizer", add_special_tokens=False, vocab_size=512, end_id=2, pad_id=7
)
WANTED = ["INPUT_ID", "REQUEST_INPUT_LEN"]


def text(words):
    return np.array([[words]], object)


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(pb_utils, "deserialize_bytes_tensor", None, raising=False)
    monkeypatch.setattr(pb_utils.Logger, "lines", [])
    return load("tandem.preprocessing.triton", "PreprocessingModel", SETTINGS, tmp_path)


def test_each_request_is_answered_whatever_becomes_of_the_others(model):
    good = request(WANTED, QUERY=text(b"The dog"))
    wrong, broken = request(WANTED), request(WANTED, QUERY=None)
    answered, refused, failed = model.execute([good, wrong, broken])
    ids = byte_level().encode("The dog").ids
    assert arrays(answered) == {"INPUT_ID": [ids], "REQUEST_INPUT_LEN": [[len(ids)]]}
    assert error(refused) == ("INVALID_ARG: QUERY: missing", pb_utils.TritonError.INVALID_ARG)
    assert error(failed) == ("preprocessing failed", pb_utils.TritonError.INTERNAL)
    assert [line.splitlines()[0] for line in pb_utils.Logger.lines] == [
        "Traceback (most recent call last):"
    ]


def test_only_what_was_asked_for_is_answered(model):
    [response] = model.execute([request(WANTED[1:], QUERY=text(b"The dog"))])
    assert list(arrays(response)) == WANTED[1:]


@pytest.mark.usefixtures("model")
def test_strings_are_read_by_our_own_reader():
    assert pb_utils.deserialize_bytes_tensor is Strings
