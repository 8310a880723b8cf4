"""The torch engine: runs a Hugging Face checkpoint on PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch

from tandem.engines.capabilities import TORCH
from tandem.engines.stepping.engine import SteppingEngine
from tandem.engines.torch.checkpoint import Loader, load_checkpoint
from tandem.engines.torch.model import PackedModel
from tandem.engines.torch.settings import TorchSettings


class TorchEngine(SteppingEngine):
    """Serves a Hugging Face checkpoint."""

    def __init__(
        self, settings: TorchSettings, folder: Path, load: Loader = load_checkpoint
    ) -> None:
        """Load the checkpoint, check it and warm it up. Raises LoadError.

        load: makes the model, in the engine's process and on its device.
        """

        def load_model() -> PackedModel:
            if settings.threads:
                torch.set_num_threads(settings.threads)
            return PackedModel(settings, folder, load)

        super().__init__(settings, TORCH, load_model)
