"""The configuration strings of the source documents, as NVIDIA's `run.py` takes them.

``[4,[0],[1],True]``   draft_len, draft devices, target devices, use_logits
``[10,2,[0]]``         prompt_lookup_num_tokens, max_matching_ngram_size, devices
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

Devices = tuple[int, ...]


class ConfigStringError(ValueError):
    """A string cannot be read. The text names the part, its value and what would be right."""


class ConfigPart(NamedTuple):
    """One value of a string. read: return it, or raise ConfigStringError with what it must be."""

    name: str
    read: Callable[[object], int | bool | Devices]


@dataclass(frozen=True)
class DraftTargetConfig:
    """A draft model and a target: ``[draft_len,[draft devices],[target devices],use_logits]``.

    use_logits: accept by the ratio of probabilities rather than by comparing token ids.
    """

    draft_len: int
    draft_devices: Devices
    target_devices: Devices
    use_logits: bool

    @classmethod
    def parse(cls, text: str) -> DraftTargetConfig:
        parts = (
            ConfigPart("draft_len", _count),
            ConfigPart("draft devices", _devices),
            ConfigPart("target devices", _devices),
            ConfigPart("use_logits", _flag),
        )
        return cls(*_read(text, parts, "[4,[0],[1],True]"))

    def __str__(self) -> str:
        return _spell(self.draft_len, self.draft_devices, self.target_devices, self.use_logits)


@dataclass(frozen=True)
class PromptLookupConfig:
    """Prompt lookup: ``[prompt_lookup_num_tokens,max_matching_ngram_size,[devices]]``."""

    prompt_lookup_num_tokens: int
    max_matching_ngram_size: int
    devices: Devices

    @classmethod
    def parse(cls, text: str) -> PromptLookupConfig:
        parts = (
            ConfigPart("prompt_lookup_num_tokens", _count),
            ConfigPart("max_matching_ngram_size", _count),
            ConfigPart("devices", _devices),
        )
        return cls(*_read(text, parts, "[10,2,[0]]"))

    def __str__(self) -> str:
        return _spell(self.prompt_lookup_num_tokens, self.max_matching_ngram_size, self.devices)


def fitted(devices: Devices, tp_size: int) -> Devices:
    """Return a list of tp_size devices: the first ones, and the next free ones where they end."""
    spare = (number for number in range(len(devices) + tp_size) if number not in devices)
    return (*devices, *(next(spare) for _ in range(tp_size - len(devices))))[:tp_size]


def spell_devices(devices: Devices) -> str:
    return f"[{','.join(map(str, devices))}]"


def _spell(*values: int | bool | Devices) -> str:
    spelt = (spell_devices(v) if isinstance(v, tuple) else str(v) for v in values)
    return f"[{','.join(spelt)}]"


def _read(text: str, parts: tuple[ConfigPart, ...], example: str) -> Iterator[Any]:
    found = _elements(text, example)
    if len(found) != len(parts):
        names = ", ".join(part.name for part in parts)
        raise ConfigStringError(
            f"{len(found)} parts in {text.strip()!r}, must be {len(parts)}: {names}, as in "
            f'"{example}"'
        )
    for number, (part, element) in enumerate(zip(parts, found, strict=True), start=1):
        try:
            yield part.read(_value(element))
        except ConfigStringError as error:
            raise ConfigStringError(
                f"part {number}, {part.name}, {error}, not {ast.unparse(element)}, as in "
                f'"{example}"'
            ) from None


def _elements(text: str, example: str) -> list[ast.expr]:
    try:
        whole = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        whole = None
    if not isinstance(whole, ast.List):
        raise ConfigStringError(f'{text.strip()!r} is not a list in brackets, as in "{example}"')
    return whole.elts


def _value(element: ast.expr) -> object:
    try:
        return ast.literal_eval(element)
    except ValueError:
        return None  # a name, a call: nothing that any part may be


def _count(value: object) -> int:
    if not _is_whole(value) or value < 1:
        raise ConfigStringError("must be a whole number of at least 1")
    return value


def _devices(value: object) -> Devices:
    if not isinstance(value, list) or not value:
        raise ConfigStringError("must be a list of devices in brackets")
    if not all(_is_whole(number) and number >= 0 for number in value):
        raise ConfigStringError("must list whole numbers of at least 0")
    if len(set(value)) < len(value):
        raise ConfigStringError("must name each device once")
    return tuple(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigStringError("must be True or False")
    return value


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
