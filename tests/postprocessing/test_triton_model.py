"""As a Triton model, `postprocessing` answers each request of a batch separately."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
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
    parameters = {key: {"string_value": value} for key, value in encode(SETTINGS).items()}
    made = PostprocessingModel()
    made.initialize(
        {
            "model_config": json.dumps({"name": "tokenizer", "parameters": parameters}),
            "model_repository": str(tmp_path),
            "model_version": "1",
        }
    )
    return made


def tokens(**changes):
    inputs = {
        "TOKENS_BATCH": np.array([[IDS]], np.int32),
        "SEQUENCE_LENGTH": np.array([[len(IDS)]], np.int32),
    }
    tensors = [pb_utils.Tensor(name, array) for name, array in (inputs | changes).items()]
    return SimpleNamespace(inputs=lambda: tensors, requested_output_names=lambda: ["OUTPUT"])


def arrays(response):
    assert not response.has_error()
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


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
    assert line.startswith("INVALID_ARG: SEQUENCE_LENGTH")
    assert code == pb_utils.TritonError.INVALID_ARG
    assert error(failed) == (
        "internal error; see the server's log",
        pb_utils.TritonError.INTERNAL,
    )
    assert [logged.splitlines()[0] for logged in pb_utils.Logger.lines] == [
        "Traceback (most recent call last):"
    ]


def test_a_request_without_outputs_has_an_empty_answer(model):
    asked = tokens()
    asked.requested_output_names = list
    assert [arrays(response) for response in model.execute([asked])] == [{}]
