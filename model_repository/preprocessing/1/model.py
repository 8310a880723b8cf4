"""Triton's `preprocessing`: hands the tensors of each request to the package of that name."""

import json
import sys
import traceback
from pathlib import Path

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))  # before anything else that bears our names

from contract.parameters import decode
from preprocessing.errors import InputError
from preprocessing.preprocessor import Preprocessor
from preprocessing.settings import TokenizerSettings


class TritonPythonModel:
    """Text to token ids."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        settings = decode(TokenizerSettings, json.loads(args["model_config"]))
        self._preprocessor = Preprocessor.load(settings, Path(__file__).parent)

    def execute(self, requests: list) -> list:
        """Answer every request, one that is wrong with a one-line error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: "pb_utils.InferenceRequest") -> "pb_utils.InferenceResponse":
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            outputs = self._preprocessor.answer(inputs, request.requested_output_names())
        except InputError as error:
            wrong = pb_utils.TritonError(error.coded, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=wrong)
        except Exception:  # noqa: BLE001 - whatever it is, the client gets one line
            pb_utils.Logger.log_error(traceback.format_exc())
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("preprocessing failed"))
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in outputs.items()])
