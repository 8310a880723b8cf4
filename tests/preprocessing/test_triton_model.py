"""The tokenizer models return arrays or one-line errors."""

import numpy as np
import pytest
import triton_python_backend_utils as triton
from triton_python_backend_utils import Request, ResponseSender, TritonError

from tandem.preprocessing.errors import InputError
from tandem.preprocessing.triton import ArrayModel


class Doubler(ArrayModel):
    def load(self, model_config, folder):
        assert (model_config, str(folder)) == ("{}", "/models/doubler/1")

        def answer(inputs, wanted):
            if "WRONG" in inputs:
                raise InputError("WRONG is wrong")
            return dict.fromkeys(wanted, 2 * inputs["IN"])

        return answer


@pytest.fixture
def ask():
    triton.reset()
    model = Doubler()
    model.initialize(
        {"model_config": "{}", "model_repository": "/models/doubler", "model_version": "1"}
    )
    yield lambda **inputs: model.execute([Request(inputs, ["OUT"], ResponseSender(), "r")])[0]
    triton.reset()


def test_a_request_with_arrays_returns_arrays(ask):
    assert ask(IN=np.array([3])).arrays["OUT"].tolist() == [6]


def test_an_invalid_input_is_an_invalid_argument_error(ask):
    error = ask(WRONG=np.array([1])).error()
    assert "WRONG is wrong" in error.message()
    assert error.code() == TritonError.INVALID_ARG


def test_other_errors_have_one_line_and_log_a_traceback(ask):
    assert ask().error().message() == "internal error; see the server's log"
    assert "KeyError" in triton.Logger.lines[0]
