"""The training text, the tokenizer that target and draft share, and batches of token ids.

The text is the Python sources that every installation of Tandem has: the standard library and the
packages of the `embedded` extra, without tests, tables, vendored copies and near duplicates. A hash
of a file's path decides whether the file is held out, so files stay on the same side of the split
when a library is updated.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

Split = Literal["train", "held_out"]

DEPENDENCIES = (
    *("torch", "torchgen", "transformers", "sympy", "numpy", "networkx", "huggingface_hub"),
    *("pydantic", "aiohttp", "jinja2", "fsspec", "mpmath", "rich"),
)
HELD_OUT_PERCENT = 3

# Folders with tests, tables, generated code, and vendored or legacy copies.
SKIPPED_FOLDERS = {
    *("test", "tests", "testing", "_testing", "__pycache__", "site-packages", "encodings"),
    *("idlelib", "lib2to3", "pydoc_data", "turtledemo", "tkinter", "distutils", "config", "msilib"),
    *("_vendor", "_vendored", "onnx", "_numpy", "deprecated", "f2py", "_examples", "typing"),
}
MIN_CHARS, MAX_CHARS = 400, 250_000
MAX_LINE, MAX_DIGIT_SHARE, MAX_NON_ASCII_SHARE = 400, 0.06, 0.005

SHINGLE_LINES = 4
MAX_SEEN_SHARE = 0.35
VOCABULARY_SIZE = 3072
END_OF_TEXT = "<|endoftext|>"

# Newlines and spaces form separate runs, so an indentation is one token, and a prompt can end
# before or after it. A name includes one leading space or dot. CamelCase is split at capitals. Each
# digit is separate.
PIECES = (
    r"[ .]?(?:\p{Lu}?[\p{Ll}_]+|[\p{Lu}_]+(?!\p{Ll})|\p{L})"
    r"|[ ]?\p{N}|\n+|[ ]{2,}|[ ]?[^\s\p{L}\p{N}_]+|\s"
)
Ids = npt.NDArray[np.uint16]

DEMO = Path(__file__).parents[2] / "tandem" / "demo"
STATE = Path(__file__).with_name(".train")
TOKENIZER = DEMO / "tokenizer"


@dataclass(frozen=True)
class Document:
    """One source file. name: path relative to the library folder. text: the cleaned source."""

    name: str
    text: str

    @property
    def split(self) -> Split:
        """Whether the file is for training or held out, by a hash of its name."""
        return "held_out" if _hash(self.name) % 100 < HELD_OUT_PERCENT else "train"


def documents() -> list[Document]:
    """Return all usable source files without near duplicates, in a fixed shuffled order."""
    found = [d for name, path in _source_files() if (d := _read(name, path)) is not None]
    found.sort(key=lambda d: _hash(d.name))
    return list(_without_near_duplicates(found))


def _is_usable(text: str) -> bool:
    """Return False for tables, minified or generated text, and text of unusual length."""
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        return False
    if max(map(len, text.splitlines())) > MAX_LINE:
        return False
    digits = sum(map(str.isdigit, text)) / len(text)
    non_ascii = 1 - len(text.encode("ascii", "ignore")) / len(text)
    return digits <= MAX_DIGIT_SHARE and non_ascii <= MAX_NON_ASCII_SHARE


def clean(text: str) -> str:
    """Normalize whitespace, and remove the leading comment block (license headers, shebangs)."""
    text = text.replace("\r\n", "\n").expandtabs(8)
    text = re.sub(r"\A(?:[ \t]*(?:#[^\n]*)?\n)+", "", text)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"


def _source_files() -> Iterator[tuple[str, Path]]:
    standard = Path(sysconfig.get_path("stdlib"))
    installed = Path(sysconfig.get_path("purelib"))
    for base, root in [
        (standard, standard),
        *((installed, installed / name) for name in DEPENDENCIES),
    ]:
        for path in sorted(root.rglob("*.py")):
            relative = path.relative_to(base)
            if SKIPPED_FOLDERS.isdisjoint(relative.parts[:-1]) and not relative.name.startswith(
                "test_"
            ):
                yield relative.as_posix(), path


def _read(name: str, path: Path) -> Document | None:
    try:
        text = clean(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, OSError):
        return None
    return Document(name, text) if _is_usable(text) else None


def _without_near_duplicates(candidates: list[Document]) -> Iterator[Document]:
    """Skip a file if more than a third of its 4-line shingles occur in earlier files."""
    seen: set[int] = set()
    for document in candidates:
        shingles = _shingles(document.text)
        if shingles and len(shingles & seen) <= MAX_SEEN_SHARE * len(shingles):
            yield document
        seen |= shingles


def _shingles(text: str) -> set[int]:
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 3]
    windows = zip(*(lines[i:] for i in range(SHINGLE_LINES)), strict=False)
    return {_hash("\n".join(window)) for window in windows}


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train the tokenizer on `texts`; the end-of-text token has id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the two files that `AutoTokenizer` and `Tokenizer.from_file` load."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


@dataclass(frozen=True)
class TokenizedCorpus:
    """Two streams of token ids, with an end-of-text token between documents."""

    train: Ids
    held_out: Ids


def load_corpus() -> TokenizedCorpus:
    """Load the tokenized corpus from the cache, or tokenize it.

    Trains the tokenizer if it doesn't exist.
    """
    cached = STATE / "corpus.npz"
    if not cached.exists():
        STATE.mkdir(exist_ok=True)
        found = documents()
        tokenizer = _tokenizer(found)
        streams = {
            split: _stream(tokenizer, [d for d in found if d.split == split])
            for split in ("train", "held_out")
        }
        np.savez(cached, **streams)
    with np.load(cached) as arrays:
        return TokenizedCorpus(arrays["train"], arrays["held_out"])


def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


def batch(stream: Ids, index: int, rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Return batch `index` of an infinite, seeded shuffle of `stream`: ids [rows, length + 1].

    Each pass over the stream starts at a different offset, so windows don't repeat exactly.
    """
    windows = len(stream) // length - 2
    epoch, first = divmod(index * rows, windows)
    starts: list[int] = []
    while len(starts) < rows:
        rng = np.random.default_rng((seed, length, epoch))
        offset = int(rng.integers(length))
        starts += [
            offset + int(w) * length
            for w in rng.permutation(windows)[first : first + rows - len(starts)]
        ]
        epoch, first = epoch + 1, 0
    return torch.from_numpy(np.stack([stream[s : s + length + 1] for s in starts]).astype(np.int64))


def _tokenizer(found: list[Document]) -> Tokenizer:
    if not (TOKENIZER / "tokenizer.json").exists():
        # A third of the files is enough to learn the merges; more would only take memory.
        _save_tokenizer(
            _train_tokenizer(d.text for d in found[::3] if d.split == "train"), TOKENIZER
        )
    return load_tokenizer()


def _stream(tokenizer: Tokenizer, found: list[Document]) -> Ids:
    end = tokenizer.token_to_id(END_OF_TEXT)
    encoded = tokenizer.encode_batch_fast([d.text for d in found])
    return np.concatenate([np.array([*e.ids, end], dtype=np.uint16) for e in encoded])
