"""A package that stands in for one that needs a GPU: `tensorrt_llm`, as far as we use it."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def plant(models: Path, model: str = "target") -> None:
    """Let a model of a rendered repository import the stand-in."""
    shutil.copytree(HERE / "tensorrt_llm", models / model / "1" / "tensorrt_llm")
