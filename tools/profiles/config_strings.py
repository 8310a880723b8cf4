"""The configuration strings of the source documents, as NVIDIA's `run.py` takes them.

``[4,[0],[1],True]``   draft_len, draft devices, target devices, use_logits
``[10,2,[0]]``         prompt_lookup_num_tokens, max_matching_ngram_size, devices
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeGuard, TypeVar

Devices = tuple[int, ...]
Config = TypeVar("Config", bound="ConfigString")


class ConfigStringError(ValueError):
    """A string cannot be read. The text names the part, its value and what would be right."""


class ConfigString:
    """A list in brackets; a subclass is a dataclass with a field for each part, in order."""

    example: ClassVar[str]

    @classmethod
    def parse(cls: type[Config], text: str) -> Config:
        return cls(*_read(text, cls))

    def __str__(self) -> str:
        parts = vars(self).values()
        spelt = (spell_devices(p) if isinstance(p, tuple) else str(p) for p in parts)
        return f"[{','.join(spelt)}]"


@dataclass(frozen=True)
class DraftTargetConfig(ConfigString):
    """A draft model and a target: ``[draft_len,[draft devices],[target devices],use_logits]``.

    use_logits: accept by the ratio of probabilities rather than by comparing token ids.
    """

    example: ClassVar[str] = "[4,[0],[1],True]"
    draft_len: int
    draft_devices: Devices
    target_devices: Devices
    use_logits: bool


@dataclass(frozen=True)
class PromptLookupConfig(ConfigString):
    """Prompt lookup: ``[prompt_lookup_num_tokens,max_matching_ngram_size,[devices]]``."""

    example: ClassVar[str] = "[10,2,[0]]"
    prompt_lookup_num_tokens: int
    max_matching_ngram_size: int
    devices: Devices


def fitted(devices: Devices, tp_size: int) -> Devices:
    """Return a list of tp_size devices: the first ones, and the next free ones where they end."""
    spare = (number for number in range(len(devices) + tp_size) if number not in devices)
    return (*devices, *(next(spare) for _ in range(tp_size - len(devices))))[:tp_size]


def spell_devices(devices: Devices) -> str:
    return f"[{','.join(map(str, devices))}]"


def _read(text: str, config: type[ConfigString]) -> Iterator[Any]:
    text, such_as = text.strip(), f'as in "{config.example}"'
    try:
        whole = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        whole = None
    if not isinstance(whole, ast.List):
        raise ConfigStringError(f"{text!r} is not a list in brackets, {such_as}")
    parts = {field.name.replace("_devices", " devices"): field.type for field in fields(config)}  # type: ignore[arg-type]
    if len(whole.elts) != len(parts):
        raise ConfigStringError(
            f"{len(whole.elts)} parts in {text!r}, must be {len(parts)}: {', '.join(parts)}, "
            f"{such_as}"
        )
    for number, (name, element) in enumerate(zip(parts, whole.elts, strict=True), start=1):
        try:
            value = ast.literal_eval(element)
        except ValueError:
            value = None  # a name or a call, which no part can be
        try:
            yield READERS[parts[name]](value)
        except ConfigStringError as error:
            raise ConfigStringError(
                f"part {number}, {name}, {error}, not {ast.unparse(element)}, {such_as}"
            ) from None


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


# By the annotation of a field.
READERS: dict[Any, Any] = {"int": _count, "Devices": _devices, "bool": _flag}
