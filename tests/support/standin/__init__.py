"""A stand-in for the part of `tensorrt_llm` that Tandem uses. The real package needs a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent


def plant(models: Path, model: str = "target", *, version: str = "1.2.1") -> None:
    """Copy the stand-in into a rendered repository, so that a model imports it.

    version: the version that the copy pretends to be.
    """
    package = models / model / "1" / "tensorrt_llm"
    shutil.copytree(HERE / "tensorrt_llm", package)
    source = package / "__init__.py"
    source.write_text(source.read_text().replace('"1.2.1"', f'"{version}"'))
