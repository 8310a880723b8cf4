"""`postprocessing` as a model of Triton's Python backend."""

from __future__ import annotations

import json
from pathlib import Path

from tandem.contract.model_parameters import decode
from tandem.postprocessing.postprocessor import DetokenizerSettings, Postprocessor
from tandem.preprocessing.triton import Answer, ArrayModel


class PostprocessingModel(ArrayModel):
    """Converts token ids to text: passes the tensors of each request to `Postprocessor`."""

    def load(self, model_config: str, folder: Path) -> Answer:
        settings = decode(DetokenizerSettings, json.loads(model_config))
        return Postprocessor.load(settings, folder).answer
