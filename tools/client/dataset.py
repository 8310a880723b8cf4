"""Reads files of prompts, and files of prompts with reference answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AliasChoices, BeforeValidator, Field, TypeAdapter, ValidationError

from tandem.tools.errors import TandemError
from tandem.tools.profiles.profile import explain

PROMPT_KEYS = ("prompt", "text_input", "text")
Row = TypeVar("Row")


@dataclass(frozen=True)
class DatasetPrompt:
    """A prompt.

    kind: the group of prompts that are measured together. prediction: the expected output. Every
    field except text may be empty.
    """

    text: Annotated[str, Field(validation_alias=AliasChoices(*PROMPT_KEYS))]
    kind: str = ""
    prediction: str = ""


@dataclass(frozen=True)
class Item:
    """A prompt and the reference for its answer.

    text: the prompt, which is sent unchanged. summary: the reference. id: the item's number, from
    1, if the file has no id. stop: strings that end an answer.
    """

    text: str
    summary: str
    id: Annotated[str, BeforeValidator(str)] = ""
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1)], ...],
        BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
    ] = ()


def read_prompts(path: Path) -> list[DatasetPrompt]:
    """Read one prompt per line: a JSON object if the file is .jsonl, otherwise plain text.

    Raises TandemError, which names the invalid line.
    """
    if path.suffix == ".jsonl":
        return _read(path, TypeAdapter(DatasetPrompt))
    return [DatasetPrompt(line) for _, line in _lines(path)]


def read_items(path: Path) -> list[Item]:
    """Read the items of a JSONL file; raise TandemError, which names the invalid line."""
    items = _read(path, TypeAdapter(Item))
    return [replace(item, id=item.id or str(n)) for n, item in enumerate(items, start=1)]


def _read(path: Path, row: TypeAdapter[Row]) -> list[Row]:
    rows = []
    for number, line in _lines(path):
        try:
            rows.append(row.validate_json(line))
        except ValidationError as error:
            key_path, reason = explain(error)
            key = f"{key_path[0]}: " if key_path else ""
            raise TandemError(f"{path}:{number}: {key}{reason}") from error
    return rows


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the nonempty lines with their line numbers."""
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # JSON strings may contain other separators
    except OSError as error:
        raise TandemError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TandemError(f"can't read {path}: it isn't UTF-8") from error
    found = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise TandemError(f"{path} is empty")
    return found
