"""The llamacpp engine: runs a GGUF file on llama.cpp."""

from __future__ import annotations

from pathlib import Path

import torch

from tandem.engines.capabilities import LLAMACPP
from tandem.engines.llamacpp.model import LlamaCppModel
from tandem.engines.llamacpp.settings import GGUF_FILE, LlamaCppSettings
from tandem.engines.stepping.engine import SteppingEngine


class LlamaCppEngine(SteppingEngine):
    """Serves a GGUF file."""

    def __init__(self, settings: LlamaCppSettings, folder: Path) -> None:
        """Load the file and check it. Raises LoadError."""
        self._loaded: list[LlamaCppModel] = []

        def load_model() -> LlamaCppModel:
            torch.set_num_threads(1)  # it only samples; more threads would compete with llama.cpp's
            model = LlamaCppModel(settings, folder / settings.checkpoint / GGUF_FILE)
            self._loaded.append(model)
            return model

        super().__init__(settings, LLAMACPP, load_model)

    def close(self) -> None:
        super().close()
        while self._loaded:
            self._loaded.pop().close()
