"""Reads files of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from tandem.tools.errors import TandemError
from tandem.tools.profiles.profile import explain

PROMPT_KEYS = ("prompt", "text_input", "text")


@dataclass(frozen=True)
class DatasetPrompt:
    """A prompt.

    kind: the group of prompts that are measured together. prediction: the expected output. Every
    field except text may be empty.
    """

    text: Annotated[str, Field(validation_alias=AliasChoices(*PROMPT_KEYS))]
    kind: str = ""
    prediction: str = ""


def read_prompts(path: Path) -> list[DatasetPrompt]:
    """Read one prompt per line: a JSON object if the file is .jsonl, otherwise plain text.

    Raises TandemError, which names the invalid line.
    """
    lines = _lines(path)
    if path.suffix != ".jsonl":
        return [DatasetPrompt(line) for _, line in lines]
    row, prompts = TypeAdapter(DatasetPrompt), []
    for number, line in lines:
        try:
            prompts.append(row.validate_json(line))
        except ValidationError as error:
            key_path, reason = explain(error)
            key = f"{key_path[0]}: " if key_path else ""
            raise TandemError(f"{path}:{number}: {key}{reason}") from error
    return prompts


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
