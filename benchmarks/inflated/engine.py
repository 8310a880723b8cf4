"""The model.py of an engine for inflated checkpoints: the real engine with another loader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from real_model import TritonPythonModel as RealModel

from tandem.engines.load import without_common_parameters
from tandem.engines.torch.load import load


class TritonPythonModel(RealModel):
    """The class that Triton's Python backend loads."""

    def load_engine(self, model_config: dict[str, Any], folder: Path) -> Any:
        """Start the engine on a checkpoint that is inflated in this process."""
        sys.path.append((folder / "checkout").read_text())
        from benchmarks.inflated.checkpoint import load_inflated  # noqa: PLC0415

        return load(without_common_parameters(model_config), folder, load_inflated)
