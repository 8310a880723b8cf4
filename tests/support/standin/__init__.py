"""A stand-in for `tensorrt_llm`, which needs a GPU: the part that we use."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def plant(models: Path, model: str = "target") -> None:
    """Let a model of a rendered repository import the stand-in."""
    shutil.copytree(HERE / "tensorrt_llm", models / model / "1" / "tensorrt_llm")
