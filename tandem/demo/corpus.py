"""The training text: Python sources that every installation of Tandem has.

The sources are the standard library and the packages of the `embedded` extra, without tests,
tables, vendored copies and near duplicates. A hash of a file's path decides whether the file is
held out, so files stay on the same side of the split when a library is updated.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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


def is_usable(text: str) -> bool:
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
    return Document(name, text) if is_usable(text) else None


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
