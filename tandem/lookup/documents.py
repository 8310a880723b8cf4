"""The files from which lookup pools are filled when a server starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tandem.lookup.pools import LookupPools

POOLS = "pools"  # folder of the files in a rendered repository
LINES = ".jsonl"


class DocumentError(ValueError):
    """A file isn't a document. The message is one line that names it."""


def find_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of all pools, by subfolder; "": files with a document per line."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            files[path.name] = sorted(path.iterdir())
        elif path.suffix == LINES:
            files.setdefault("", []).append(path)
        else:
            raise DocumentError(f"{path} must be a folder of documents, or a {LINES} file")
    return files


def read_documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the pool and the text of each document. Raises DocumentError."""
    for pool, paths in find_files(folder).items():
        for path in paths:
            try:
                text = path.read_text(encoding="utf-8")
                if pool:
                    yield pool, text
                    continue
                for line in filter(None, text.split("\n")):
                    yield path.stem, json.loads(line)["text"].encode().decode()
            except OSError as error:
                raise DocumentError(f"can't read {path}: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise DocumentError(f"{path} must be UTF-8") from error
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise DocumentError(
                    f'each line of {path} must be an object with a text, {{"text": "..."}}'
                ) from error


def fill(pools: LookupPools, folder: Path, encode: Callable[[str], Sequence[int]]) -> None:
    """Add all documents to their pools."""
    for pool, text in read_documents(folder):
        pools.add(pool, encode(text))
