"""As a Triton model, `postprocessing` answers each request of a batch separately."""

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from tokenizer_kinds import byte_level
from tokenizer_models import arrays, error, load, request

from tandem.postprocessing.settings import DetokenizerSettings

SETTINGS = DetokenizerSettings("tokenizer", skip_special_tokens=True)
IDS = byte_level().encode("The dog").ids


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(pb_utils.Logger, "lines", [])
    return load("tandem.postprocessing.triton", "PostprocessingModel", SETTINGS, tmp_path)


def tokens(**changes):
    inputs = {
        "TOKENS_BATCH": np.array([[IDS]], np.int32),
        "SEQUENCE_LENGTH": np.array([[len(IDS)]], np.int32),
    }
    return request(["OUTPUT"], **inputs | changes)


def test_a_failed_request_does_not_affect_others(model):
    too_long = np.array([[len(IDS) + 1]], np.int32)
    answered, refused, failed = model.execute(
        [tokens(), tokens(SEQUENCE_LENGTH=too_long), tokens(TOKENS_BATCH=None)]
    )
    assert arrays(answered) == {"OUTPUT": [b"The dog"]}
    line, code = error(refused)
    assert line.startswith("INVALID_ARG: SEQUENCE_LENGTH")
    assert code == pb_utils.TritonError.INVALID_ARG
    assert error(failed) == (
        "postprocessing failed; see the server's log",
        pb_utils.TritonError.INTERNAL,
    )
    assert [logged.splitlines()[0] for logged in pb_utils.Logger.lines] == [
        "Traceback (most recent call last):"
    ]


def test_a_request_without_outputs_has_an_empty_answer(model):
    asked = tokens()
    asked.requested_output_names = list
    assert [arrays(response) for response in model.execute([asked])] == [{}]
