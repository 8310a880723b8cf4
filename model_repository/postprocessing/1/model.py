"""Triton's `postprocessing`: token ids to text."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # before anything else that bears our names

from tandem.postprocessing.triton import PostprocessingModel


class TritonPythonModel(PostprocessingModel):
    """What Triton's Python backend looks for."""
