"""The `preprocessing` model, which tokenizes text."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # takes precedence over installed packages

from tandem.preprocessing.triton import PreprocessingModel


class TritonPythonModel(PreprocessingModel):
    """The class that Triton's Python backend loads."""
