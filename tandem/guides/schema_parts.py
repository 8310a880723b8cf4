"""Iterates over the parts of a JSON schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeGuard

# Keywords that contain schemas by name, and keywords that contain data
BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
DATA: Final = ("const", "enum", "default", "examples")

# Keywords that limit numbers, and keywords that apply to the parts of a value
NUMBER_LIMITS = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
INNER = {
    *("properties", "patternProperties", "additionalProperties"),
    *("items", "prefixItems", "additionalItems"),
}


def iter_schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it, even if only a reference leads to them."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
        left += _inside(part)


def _inside(part: Any) -> list[Any]:
    """Return the values in ``part`` that may be or contain schemas."""
    if isinstance(part, list):
        return part
    inner: list[Any] = []
    for keyword, value in part.items() if isinstance(part, dict) else ():
        if keyword in BY_NAME and isinstance(value, dict):
            inner += value.values()
        elif keyword not in DATA:
            inner.append(value)
    return inner


def iter_leaves(value: Any) -> Iterator[Any]:
    """Yield all scalars in a JSON value, in order, without the keys of objects."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict | list):
            left += reversed(part.values() if isinstance(part, dict) else part)
        else:
            yield part


def iter_combined(schema: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield groups of schemas. Several schemas of a group may apply to the same number.

    A reference may add any schema to its group. So if a group has a reference, the whole schema is
    yielded as the last group.
    """
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, dict) or not _combines(part):
            left += _inside(part)
            continue
        group = list(iter_schemas(part))
        if any("$ref" in one for one in group):
            yield list(iter_schemas(schema))
            return
        yield group


def _combines(part: dict[str, Any]) -> bool:
    """Return whether several schemas apply to one value. The part itself counts as one."""
    all_of = part.get("allOf")
    sources = [
        not part.keys().isdisjoint(NUMBER_LIMITS | INNER),
        *([True] * len(all_of) if isinstance(all_of, list) else ()),
        *(keyword in part for keyword in ("anyOf", "oneOf", "$ref")),
    ]
    return sum(sources) > 1 or ("properties" in part and "patternProperties" in part)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a JSON number. Booleans aren't numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)
