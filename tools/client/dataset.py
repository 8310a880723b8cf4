"""Files of prompts: plain ones, and those with what is wanted of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tandem.tools.errors import TandemError

PROMPT_KEYS = ("prompt", "text_input", "text")
Read = TypeVar("Read")


class Item(NamedTuple):
    """A text, sent as it stands, and its reference. stop: strings that an answer ends before."""

    id: str
    text: str
    summary: str
    stop: tuple[str, ...] = ()


def read_prompts(path: Path) -> list[str]:
    """Return a prompt a line; of a .jsonl file, the text under one of PROMPT_KEYS.

    Raises TandemError with the line that is wrong, as all of this module.
    """
    return _read(path, _prompt if path.suffix == ".jsonl" else str)


def read_prompts_by_kind(path: Path) -> dict[str, list[str]]:
    """Return the prompts of a file under their "kind"; under the file's name where none is said."""
    kinds: dict[str, list[str]] = {}
    plain = path.suffix != ".jsonl"
    for kind, prompt in _read(path, (lambda line: ("", line)) if plain else _prompt_of_a_kind):
        kinds.setdefault(kind or path.stem, []).append(prompt)
    return kinds


def read_items(path: Path) -> list[Item]:
    """Return the items of a JSONL file: "text", "summary", and if wanted "id" and "stop"."""
    items = _read(path, _item)
    return [item if item.id else item._replace(id=str(n)) for n, item in enumerate(items, start=1)]


def _read(path: Path, read: Callable[[str], Read]) -> list[Read]:
    try:
        lines = path.read_text().split("\n")  # JSON may hold other ends of lines
    except OSError as error:
        raise TandemError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TandemError(f"{path}: not UTF-8 text") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(read(line))
            except TandemError as error:
                raise TandemError(f"{path}:{number}: {error}") from error
    if not found:
        raise TandemError(f"{path}: nothing in it")
    return found


def _prompt(line: str) -> str:
    row = _object(line)
    texts = [row[key] for key in PROMPT_KEYS if key in row]
    if not texts or not isinstance(texts[0], str):
        raise TandemError(f"no string under {' or '.join(PROMPT_KEYS)}")
    return texts[0]


def _prompt_of_a_kind(line: str) -> tuple[str, str]:
    return str(_object(line).get("kind", "")), _prompt(line)


def _item(line: str) -> Item:
    row = _object(line)
    for key in ("text", "summary"):
        if not isinstance(row.get(key), str):
            raise TandemError(f"no string under {key}")
    stop = row.get("stop", ())
    stop = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else stop
    if not (isinstance(stop, tuple) and all(isinstance(s, str) and s for s in stop)):
        raise TandemError("stop is neither a string nor a list of strings")
    return Item(str(row.get("id", "")), row["text"], row["summary"], stop)


def _object(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TandemError(f"no JSON: {error}") from error
    if not isinstance(row, dict):
        raise TandemError("no JSON object")
    return row
