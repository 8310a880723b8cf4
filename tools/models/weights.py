"""A model that a command names, and its number of weights, estimated from sizes of files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem.engines.checkpoint_files import LAYERS, WIDTH
from tandem.engines.llamacpp.settings import GGUF_FILE
from tandem.tools.errors import TandemError
from tandem.tools.profiles.checkpoint import read_checkpoint_config, weight_files

EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte)\.weight$")  # [vocabulary, width]
LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
POINTER = b"version https://git-lfs"
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


def check_architecture(folder: Path) -> None:
    """Raise TandemError if the installed transformers doesn't know a checkpoint's architecture.

    Searches the names in its source, because importing it takes seconds.
    """
    kind, package = read_checkpoint_config(folder).get("model_type"), find_spec("transformers")
    if kind is None or package is None or package.origin is None or (folder / GGUF_FILE).exists():
        return
    sources = Path(package.origin).parent.glob("models/auto/*.py")
    names = {name for path in sources for name in re.findall(r'"([\w.-]+)"', path.read_text())}
    if "llama" in names and kind not in names:
        raise TandemError(
            f"{folder}: architecture '{kind}' isn't known to transformers "
            f"{metadata.version('transformers')}; a newer version may know it"
        )


def check_weights(folder: Path) -> None:
    """Raise TandemError if a checkpoint's weights are incomplete or don't fit its config.json.

    Reads only the headers of the files, so that an error takes no time. Engines check the rest.
    """
    config = read_checkpoint_config(folder)
    shapes: dict[str, list[int]] = {}
    for path in weight_files(folder):
        shapes |= _read_shapes(path)
    vocabulary = config.get("vocab_size")
    width, layers = (next(filter(None, map(config.get, names)), None) for names in (WIDTH, LAYERS))
    for name, shape in shapes.items():
        if not (EMBEDDING.search(name) and width):
            continue
        # Some architectures have embeddings of another width, which is also in config.json.
        if shape[:1] != [vocabulary] or shape[-1] not in config.values():
            raise TandemError(
                f"the weights in {folder} are another model's: {name} has shape {shape}, but "
                f"config.json needs {[vocabulary, width]}"
            )
    found = {int(number[1]) for name in shapes if (number := LAYER.search(name))}
    if found and layers and max(found) + 1 < layers:
        raise TandemError(
            f"the weights in {folder} are another model's: they have {max(found) + 1} layers, but "
            f"config.json needs {layers}"
        )


def _read_shapes(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the weights in a safetensors file. Raises TandemError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if POINTER.startswith(start) and start:
            raise TandemError(f"{path} is only a pointer to the weights; run git lfs pull")
        end = 8 + int.from_bytes(start, "little")
        header = file.read(end - 8) if 8 < end <= size else b""
    try:
        weights = json.loads(header)
        weights.pop("__metadata__", None)
        end += max((weight["data_offsets"][1] for weight in weights.values()), default=0)
        shapes = {name: list(weight["shape"]) for name, weight in weights.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TandemError(f"{path} isn't a complete safetensors file; download it again") from error
    if size < end:
        raise TandemError(f"{path} is truncated: {size} of {end} bytes; download it again")
    return shapes


def item_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes per weight in a checkpoint's files. config: its config.json."""
    return ITEM_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{max(size, 1e6) / 1e6:.0f} MB"
