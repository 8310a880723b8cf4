"""The `draft` engine. The model's parameter `engine` names its kind."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # takes precedence over installed packages

from tandem.engines.triton import EngineModel


class TritonPythonModel(EngineModel):
    """The class that Triton's Python backend loads."""
