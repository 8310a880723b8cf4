"""A stand-in for the part of `tensorrt_llm` that Tandem uses. The real package needs a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def plant(models: Path, model: str = "target") -> None:
    """Make the stand-in importable for a model of a rendered repository."""
    shutil.copytree(HERE / "tensorrt_llm", models / model / "1" / "tensorrt_llm")
