"""`preprocessing` as a model of Triton's Python backend. `postprocessing` shares `ArrayModel`."""

from __future__ import annotations

import json
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.contract.errors import prefix_code
from tandem.contract.model_parameters import decode
from tandem.contract.strings import Strings
from tandem.preprocessing.preprocessor import Preprocessor, TokenizerSettings
from tandem.preprocessing.tokenizer import InputError

Array: TypeAlias = NDArray[Any]
# Maps inputs and the names of the wanted outputs to outputs. Raises InputError.
Answer: TypeAlias = Callable[[Mapping[str, Array], Collection[str]], dict[str, Array]]


class ArrayModel(ABC):
    """Passes the arrays of each request to the function that `load` returns."""

    @abstractmethod
    def load(self, model_config: str, folder: Path) -> Answer:
        """Load the model. model_config: its configuration (JSON). folder: its version folder."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        self._answer = self.load(args["model_config"], folder)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            outputs = self._answer(inputs, request.requested_output_names())
        except InputError as error:
            wrong = pb_utils.TritonError(
                prefix_code("INVALID_ARG", str(error), error.field),
                pb_utils.TritonError.INVALID_ARG,
            )
            return pb_utils.InferenceResponse(error=wrong)
        except Exception:  # noqa: BLE001 for any error, the client gets one line
            pb_utils.Logger.log_error(traceback.format_exc())
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("internal error; see the server's log")
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor(n, a) for n, a in outputs.items()])


class PreprocessingModel(ArrayModel):
    """Converts text to token ids: passes the tensors of each request to `Preprocessor`."""

    def load(self, model_config: str, folder: Path) -> Answer:
        pb_utils.deserialize_bytes_tensor = Strings
        settings = decode(TokenizerSettings, json.loads(model_config))
        return Preprocessor.load(settings, folder).answer
