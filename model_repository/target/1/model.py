"""The `target` engine: a Hugging Face checkpoint on PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # Triton appends it: anything installed would win

from contract.parameters import decode
from engines.torch.load import load
from engines.torch.settings import TorchSettings
from engines.triton import EngineModel


class TritonPythonModel(EngineModel):
    """What Triton's Python backend looks for."""

    def load_engine(self, model_config: dict[str, Any], folder: Path) -> Any:
        """Build the torch engine from the model's parameters."""
        return load(decode(TorchSettings, model_config), folder)
