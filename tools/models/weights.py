"""A model that a command names, and its number of weights, estimated from sizes of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.tools.profiles.checkpoint import read_checkpoint_config, weight_files

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class FoundModel:
    """A model whose weights may still have to be downloaded.

    folder: contains the configuration and the tokenizer. num_parameters: the approximate number of
    weights. download: downloads the weights and returns their folder; None if ``folder`` has them.
    """

    name: str
    folder: Path
    num_parameters: int
    download: Callable[[], Path] | None = None

    def checkpoint(self) -> Path:
        """Return the folder of the complete checkpoint. Raises TandemError."""
        return self.download() if self.download else self.folder


def count_parameters(folder: Path) -> int:
    """Return the approximate number of weights in a checkpoint's folder; 0 without known files."""
    size = sum(path.stat().st_size for path in weight_files(folder))
    return size // item_bytes(read_checkpoint_config(folder))


def item_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes per weight in a checkpoint's files. config: its config.json."""
    return ITEM_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(size, 1e6) / 1e6:.0f} MB"
