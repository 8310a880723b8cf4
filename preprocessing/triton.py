"""`preprocessing` as a model of Triton's Python backend: the only place here that knows Triton."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.contract.parameters import decode
from tandem.contract.strings import Strings
from tandem.preprocessing.errors import InputError
from tandem.preprocessing.preprocessor import Preprocessor
from tandem.preprocessing.settings import TokenizerSettings


class PreprocessingModel:
    """Text to token ids: hands the tensors of each request to ``Preprocessor``."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        pb_utils.deserialize_bytes_tensor = Strings
        settings = decode(TokenizerSettings, json.loads(args["model_config"]))
        folder = Path(args["model_repository"]) / args["model_version"]
        self._preprocessor = Preprocessor.load(settings, folder)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer every request, one that is wrong with a one-line error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            outputs = self._preprocessor.answer(inputs, request.requested_output_names())
        except InputError as error:
            wrong = pb_utils.TritonError(error.coded, pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=wrong)
        except Exception:  # noqa: BLE001  whatever it is, the client gets one line
            pb_utils.Logger.log_error(traceback.format_exc())
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("preprocessing failed"))
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in outputs.items()])
