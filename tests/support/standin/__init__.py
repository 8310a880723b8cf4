"""A stand-in for the part of `tensorrt_llm` that Tandem uses. The real package needs a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def plant(models: Path, model: str = "target") -> None:
    """Copy the stand-in into a rendered repository, so that a model imports it."""
    shutil.copytree(HERE / "tensorrt_llm", models / model / "1" / "tensorrt_llm")
