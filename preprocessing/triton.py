"""`preprocessing` as a model of Triton's Python backend."""

from __future__ import annotations

import json
from pathlib import Path

import triton_python_backend_utils as pb_utils

from tandem.contract.parameters import decode
from tandem.contract.strings import Strings
from tandem.preprocessing.preprocessor import Preprocessor
from tandem.preprocessing.settings import TokenizerSettings
from tandem.preprocessing.triton_model import Answer, ArrayModel


class PreprocessingModel(ArrayModel):
    """Text to token ids: hands the tensors of each request to ``Preprocessor``."""

    name = "preprocessing"

    def load(self, model_config: str, folder: Path) -> Answer:
        pb_utils.deserialize_bytes_tensor = Strings
        settings = decode(TokenizerSettings, json.loads(model_config))
        return Preprocessor.load(settings, folder).answer
