"""How a model's settings travel through ``config.pbtxt``.

Triton keeps a model's parameters as strings. A settings dataclass becomes one parameter a field,
each value as JSON (a plain string stays itself, so that ``tokenizer_dir`` reads as NVIDIA's does).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Settings = TypeVar("Settings")


class ParameterError(ValueError):
    """A parameter is missing, unknown or unreadable; the text names it."""


def encode(settings: Any) -> dict[str, str]:
    """Return the parameters that stand for a settings dataclass; fields that are None stay out."""
    fields = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
        if value is not None
    }


def decode(kind: type[Settings], model_config: Mapping[str, Any]) -> Settings:
    """Build ``kind`` (a dataclass) from the ``parameters`` of a parsed model configuration.

    Raises ParameterError with the model's name and the field.
    """
    model = model_config.get("name", "?")
    given = {k: v["string_value"] for k, v in model_config.get("parameters", {}).items()}
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    unknown = sorted(set(given) - set(fields))
    if unknown:
        raise ParameterError(
            f"model '{model}': unknown parameter '{unknown[0]}'; known are {', '.join(fields)}"
        )
    values = {}
    for name, text in given.items():
        try:
            values[name] = text if _is_text(hints[name]) else _from_json(json.loads(text))
        except json.JSONDecodeError as error:
            raise ParameterError(
                f"model '{model}': parameter '{name}' is not JSON: {text!r}"
            ) from error
    try:
        return kind(**values)
    except TypeError as error:
        raise ParameterError(f"model '{model}': {error}") from error


def _is_text(hint: Any) -> bool:
    """Whether a field holds a string: ``str``, a ``Literal`` of strings, or either or None."""
    if get_origin(hint) in (Union, UnionType):
        return any(_is_text(part) for part in get_args(hint))
    return hint is str or get_origin(hint) is Literal


def _from_json(value: Any) -> Any:
    """JSON has lists only; settings are frozen, so they hold tuples."""
    return tuple(_from_json(item) for item in value) if isinstance(value, list) else value
