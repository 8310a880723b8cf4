"""The `postprocessing` model, which detokenizes ids."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # takes precedence over installed packages

from tandem.postprocessing.triton import PostprocessingModel


class TritonPythonModel(PostprocessingModel):
    """The class that Triton's Python backend loads."""
