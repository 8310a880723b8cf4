"""Triton's `preprocessing`: text to token ids."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # before anything else that bears our names

from tandem.preprocessing.triton import PreprocessingModel


class TritonPythonModel(PreprocessingModel):
    """What Triton's Python backend looks for."""
