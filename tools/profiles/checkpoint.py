"""Reads the folder of a Hugging Face checkpoint, without PyTorch.

The checks are the same for all engines: the files exist, and their JSON has the right types.
`engines` checks what one kind of engine supports.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tandem.engines.checkpoint_files import (
    HEADS,
    LAYERS,
    SAFE_FILE,
    WIDTH,
    require_safetensors,
)
from tandem.engines.errors import LoadError
from tandem.preprocessing import tokenizer as tokenizer_files
from tandem.preprocessing.tokenizer import (
    TokenizerError,
    load_tokenizer,
    longest_token_bytes,
    token_content,
)
from tandem.tools.errors import TandemError

# Names that transformers uses. The first pattern that matches counts, because a folder can contain
# the same weights in several formats.
WEIGHTS = ("model*.safetensors", "*.safetensors")
SINGLE = "model.safetensors"  # transformers prefers it to several files
INDEX = "model.safetensors.index.json"  # its weight_map has the file of each weight
POSITIONS = ("max_position_embeddings", "n_positions")  # names in different architectures
NUMBERS = (
    "vocab_size",
    "head_dim",
    "num_key_value_heads",
    *POSITIONS,
    *LAYERS,
    *HEADS,
    *WIDTH,
)
LISTS = ("architectures", "layer_types")


@dataclass(frozen=True)
class Checkpoint:
    """A causal language model in a folder.

    vocab_size: width of the logits, including padding. max_positions: maximum sequence length in
    tokens, or None without a limit. end_ids: ids of the tokens that end an answer, may be empty;
    engines get the first one.
    """

    folder: Path
    vocab_size: int
    max_positions: int | None
    end_ids: tuple[int, ...]
    pad_id: int | None


@dataclass(frozen=True)
class TokenizerFolder:
    """A tokenizer in a folder that the `tokenizers` library can read.

    ids: token -> id. longest_token_bytes: the most bytes of UTF-8 that one token can represent.
    """

    folder: Path
    ids: dict[str, int]
    longest_token_bytes: int

    @cached_property
    def fingerprint(self) -> str:
        """Return a short text that differs for another vocabulary."""
        return hashlib.sha256(json.dumps(sorted(self.ids.items())).encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        return max(self.ids.values(), default=-1) + 1

    @property
    def end_ids(self) -> tuple[int, ...]:
        """End-of-sequence ids in the folder's generation_config.json; may be empty."""
        return _ids(read_json(self.folder / "generation_config.json"), "eos_token_id", self.folder)

    def special_id(self, name: str) -> int | None:
        """Return the id of a special token, or None. name: `eos_token` or `pad_token`."""
        token = read_json(self.folder / "tokenizer_config.json").get(name)
        return self.ids.get(token_content(token) or "")


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint's configuration, without weights; raise TandemError if it isn't usable."""
    if not folder.is_dir():
        raise TandemError(
            f"no folder {folder}; create it with the checkpoint's config.json, "
            "generation_config.json and tokenizer*.json"
        )
    if not (folder / "config.json").is_file():
        raise TandemError(f"{folder} isn't a Hugging Face checkpoint: it has no config.json")
    config = read_checkpoint_config(folder)
    generation = read_json(folder / "generation_config.json")
    if config.get("vocab_size") is None:
        raise TandemError(f"{folder / 'config.json'} has no vocab_size")
    return Checkpoint(
        folder=folder,
        vocab_size=config["vocab_size"],
        max_positions=next((config[n] for n in POSITIONS if config.get(n) is not None), None),
        end_ids=_ids(generation, "eos_token_id", folder) or _ids(config, "eos_token_id", folder),
        pad_id=next(iter(_ids({**config, **generation}, "pad_token_id", folder)), None),
    )


def read_checkpoint_config(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's config.json, or {} without one.

    Raises TandemError if it is invalid. In the folder of a built TensorRT engine, the content is in
    `pretrained_config`.
    """
    path = folder / "config.json"
    config = read_json(path)
    pretrained = config.get("pretrained_config", config)
    if not isinstance(pretrained, dict):
        raise TandemError(f"pretrained_config in {path} must be a JSON object")
    for name in NUMBERS:
        if not isinstance(pretrained.get(name), int | None):
            raise TandemError(f"{name} in {path} must be an integer; got {pretrained[name]!r}")
    for name in LISTS:
        if not isinstance(pretrained.get(name), list | None):
            raise TandemError(f"{name} in {path} must be a list; got {pretrained[name]!r}")
    return pretrained


def require_weights(folder: Path) -> None:
    """Raise TandemError if weights are missing or pickled. Engines check what the files contain."""
    try:
        require_safetensors(folder)
    except LoadError as error:
        raise TandemError(str(error)) from error
    if (folder / SINGLE).is_file():
        return
    for file in _indexed_files(folder):
        if not file.is_file():
            raise TandemError(f"{folder} lacks {file.name}, which {INDEX} names; download it again")


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers loads. Others may be left from an older download."""
    if (single := folder / SINGLE).is_file():
        return [single]
    indexed = [file for file in _indexed_files(folder) if file.is_file()]
    return indexed or next((files for p in WEIGHTS if (files := sorted(folder.glob(p)))), [])


def _indexed_files(folder: Path) -> list[Path]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    names = map(str, weight_map.values()) if isinstance(weight_map, dict) else ()
    return sorted({folder / name for name in names if SAFE_FILE.fullmatch(name)})


def read_tokenizer(folder: Path) -> TokenizerFolder:
    """Read a tokenizer and its vocabulary; raise TandemError if the folder has none."""
    if not has_tokenizer(folder):
        raise TandemError(
            f"{folder} has no tokenizer.json; create it with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerError as error:
        raise TandemError(str(error)) from error
    return TokenizerFolder(
        folder, tokenizer.get_vocab(with_added_tokens=True), longest_token_bytes(tokenizer)
    )


def has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").is_file()


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the paths of the files that an engine loads: configurations and weights."""
    return sorted(folder.glob("*.json")) + weight_files(folder)


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, or {} without a file.

    Raises TandemError if the file isn't a JSON object.
    """
    try:
        return tokenizer_files.read_json(path)
    except TokenizerError as error:
        raise TandemError(str(error)) from error


def _ids(content: dict[str, Any], name: str, folder: Path) -> tuple[int, ...]:
    """Return the token id or ids in a configuration of a folder."""
    value = content.get(name)
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(token) is int for token in ids):
        raise TandemError(f"{name} in {folder} must be a token id or a list of them; got {value!r}")
    return tuple(ids)
