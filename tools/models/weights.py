"""Estimates the number of weights in a checkpoint from the sizes of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.tools.profiles.checkpoint import read_config

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
# transformers' names, the first that match: a folder may hold the same weights in other files too.
WEIGHTS = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Description:
    """The facts of a model before anything large is fetched or loaded.

    folder: has its configuration and tokenizer. num_parameters: about how many weights it has.
    missing_bytes: to be fetched.
    """

    folder: Path
    num_parameters: int
    missing_bytes: int = 0


def count_parameters(folder: Path) -> int:
    """Return the approximate number of weights in a checkpoint's folder (0: no known files)."""
    files = next((found for p in WEIGHTS if (found := list(folder.glob(p)))), [])
    return sum(path.stat().st_size for path in files) // item_bytes(read_config(folder))


def item_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes per weight in a checkpoint's files, according to its config.json."""
    return ITEM_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(size, 1e6) / 1e6:.0f} MB"
