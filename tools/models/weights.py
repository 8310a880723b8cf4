"""The weights of a checkpoint: how many there are, read without PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
SAFETENSORS = "model.safetensors"
INDEX = ".index.json"  # behind the name of the weights that it is of
MAX_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True)
class Description:
    """The facts of a model before anything large is fetched or loaded.

    folder: holds its configuration and tokenizer. num_parameters: numbers in its weights.
    missing_bytes: to be fetched.
    """

    folder: Path
    num_parameters: int
    missing_bytes: int = 0


def count_parameters(folder: Path) -> int:
    """Count the weights of a checkpoint's folder; 0 where it has none that can be read."""
    safetensors = _safetensors(folder)
    if safetensors:
        return sum(map(_in_safetensors, safetensors))
    size = sum(path.stat().st_size for path in folder.glob("pytorch_model*.bin"))
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return 0  # whoever reads the checkpoint says so
    return size // item_bytes(config)


def item_bytes(config: Mapping[str, Any]) -> int:
    """Bytes of one number in a checkpoint's files, by its config.json."""
    return ITEM_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)


def _safetensors(folder: Path) -> list[Path]:
    """Return the files that transformers reads: beside them a folder may hold the same weights."""
    whole = folder / SAFETENSORS
    if whole.is_file():
        return [whole]
    try:
        parts = indexed(folder / f"{SAFETENSORS}{INDEX}")
    except (OSError, ValueError):
        return sorted(folder.glob("*.safetensors"))
    return [folder / part for part in parts if (folder / part).is_file()]


def indexed(path: Path) -> list[str]:
    """Return the files that an index of weights names; raise ValueError where it is none."""
    try:
        return sorted(set(json.loads(path.read_text())["weight_map"].values()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _in_safetensors(path: Path) -> int:
    """Add up the shapes in a file's header: 8 bytes of its length, then JSON."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER:
            return 0
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return 0
    return sum(math.prod(t["shape"]) for name, t in header.items() if name != "__metadata__")


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(size, 1e6) / 1e6:.0f} MB"
