"""Encodes a model's settings as parameters in its ``config.pbtxt``, and decodes them.

Triton's parameters are strings. Each field of a settings dataclass becomes a parameter with a JSON
value; a nested dataclass becomes an object. Strings aren't quoted, so that ``tokenizer_dir`` looks
as in NVIDIA's configurations.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Settings = TypeVar("Settings")

FACTS = "facts"  # parameter of an engine's model: what a remote loop must know about the engine

KINDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("an integer", (int,)),
    float: ("a number", (int, float)),
    str: ("a string", (str,)),
    Mapping: ("an object", (dict,)),
}


class ParameterError(ValueError):
    """A parameter is missing, unknown or invalid. The message names it."""


def encode(settings: Any) -> dict[str, str]:
    """Return the parameters for a settings dataclass. Fields that are None are omitted."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in encode_values(settings).items()
    }


def decode(
    kind: type[Settings], model_config: Mapping[str, Any], *, ignore_unknown: bool = False
) -> Settings:
    """Build ``kind`` (a dataclass) from the ``parameters`` of a parsed model configuration.

    ignore_unknown: whether to ignore parameters that aren't fields. Raises ParameterError, whose
    message names the field. The names of nested fields are joined with dots.
    """
    hints = get_type_hints(kind)
    given = {k: v["string_value"] for k, v in model_config.get("parameters", {}).items()}
    values = {name: _parse(name, text, hints.get(name, str)) for name, text in given.items()}
    return _settings(kind, values, "", ignore_unknown=ignore_unknown)


def encode_values(value: Any) -> Any:
    """Return a settings dataclass as values for JSON. Fields that are None are omitted."""
    if isinstance(value, tuple):
        return [encode_values(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {name: encode_values(field) for name, field in fields.items() if field is not None}


def _parse(name: str, text: str, hint: Any) -> Any:
    if _is_text(hint):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"parameter '{name}' must be JSON; got {text!r}") from error


def _is_text(hint: Any) -> bool:
    """Return whether a field's type is ``str``, a ``Literal``, or an optional one of these."""
    if get_origin(hint) in (Union, UnionType):
        return any(_is_text(part) for part in get_args(hint))
    return hint is str or get_origin(hint) is Literal


def _settings(
    kind: type[Settings], given: Mapping[str, Any], within: str, *, ignore_unknown: bool
) -> Settings:
    """Build a dataclass from values by field name. within: prefix for field names in errors."""
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(fields))
    if unknown and not ignore_unknown:
        raise ParameterError(
            f"parameter '{within}{unknown[0]}' isn't known; choose one of: {', '.join(fields)}"
        )
    missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in given]
    if missing:
        raise ParameterError(f"parameter '{within}{missing[0]}' is missing")
    hints = get_type_hints(kind)
    return kind(
        **{
            name: _value(hints[name], given[name], within + name, ignore_unknown=ignore_unknown)
            for name in fields
            if name in given
        }
    )


def _value(hint: Any, value: Any, name: str, *, ignore_unknown: bool) -> Any:
    """Convert a value to its field's type. Lists become tuples, because settings are frozen."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None:
            return None
        [hint] = [part for part in parts if part is not NoneType]
        return _value(hint, value, name, ignore_unknown=ignore_unknown)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise _invalid(name, value, "an object")
        return _settings(hint, value, f"{name}.", ignore_unknown=ignore_unknown)
    if origin is tuple:
        if not isinstance(value, list):
            raise _invalid(name, value, "a list")
        return tuple(_value(parts[0], item, name, ignore_unknown=ignore_unknown) for item in value)
    if origin is Literal:
        if value not in parts:
            raise _invalid(name, value, f"one of {', '.join(parts)}")
        return value
    wanted, types = KINDS[origin or hint]
    if not isinstance(value, types) or (isinstance(value, bool) and hint is not bool):
        raise _invalid(name, value, wanted)
    return value


def _invalid(name: str, value: Any, wanted: str) -> ParameterError:
    return ParameterError(f"parameter '{name}' must be {wanted}; got {json.dumps(value)}")
