"""As a Triton model, `postprocessing` answers each request of a batch separately."""

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from model_configs import model_config, start_arguments
from tokenizer_kinds import byte_level, write

from tandem.contract.model_parameters import encode
from tandem.postprocessing.postprocessor import DetokenizerSettings
from tandem.postprocessing.triton import PostprocessingModel

SETTINGS = DetokenizerSettings("tokenizer", skip_special_tokens=True)
IDS = byte_level().encode("The dog").ids


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(pb_utils.Logger, "lines", [])
    write(byte_level(), tmp_path / "1" / "tokenizer")
    made = PostprocessingModel()
    made.initialize(start_arguments(model_config(encode(SETTINGS)), tmp_path))
    return made


def tokens(wanted=("OUTPUT",), **changes):
    inputs = {
        "TOKENS_BATCH": np.array([[IDS]], np.int32),
        "SEQUENCE_LENGTH": np.array([[len(IDS)]], np.int32),
    }
    return pb_utils.Request(None, inputs | changes, wanted)


def arrays(response):
    assert not response.has_error()
    return {name: array.tolist() for name, array in response.arrays.items()}


def error(response):
    assert response.output_tensors() == []
    return response.error().message(), response.error().code()


def test_a_failed_request_does_not_affect_others(model):
    too_long = np.array([[len(IDS) + 1]], np.int32)
    answered, rejected, failed = model.execute(
        [tokens(), tokens(SEQUENCE_LENGTH=too_long), tokens(TOKENS_BATCH=None)]
    )
    assert arrays(answered) == {"OUTPUT": [b"The dog"]}
    line, code = error(rejected)
    assert line.startswith("INVALID_ARG(SEQUENCE_LENGTH): SEQUENCE_LENGTH")
    assert code == pb_utils.TritonError.INVALID_ARG
    assert error(failed) == (
        "internal error; see the server's log",
        pb_utils.TritonError.INTERNAL,
    )
    assert [logged.splitlines()[0] for logged in pb_utils.Logger.lines] == [
        "Traceback (most recent call last):"
    ]


def test_a_request_without_outputs_has_an_empty_answer(model):
    assert [arrays(response) for response in model.execute([tokens(wanted=())])] == [{}]
