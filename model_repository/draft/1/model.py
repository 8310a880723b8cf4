"""The `draft` engine, of the kind that the model's parameter `engine` names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # Triton appends it: anything installed would win

from tandem.engines.triton import EngineModel


class TritonPythonModel(EngineModel):
    """What Triton's Python backend looks for."""
