"""What a JSON schema is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeGuard

# Where a schema holds schemas under names of its author's, and where it holds data.
BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
DATA: Final = ("const", "enum", "default", "examples")

# Numbers' limits, and what passes a value's parts on to other schemas.
LIMITS_OF_NUMBERS = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
INNER = {
    *("properties", "patternProperties", "additionalProperties"),
    *("items", "prefixItems", "additionalItems"),
}


def schemas_of(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and those in it, also where only a reference makes it one; no data."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
        left += _inside(part)


def _inside(part: Any) -> list[Any]:
    """Return what it holds that may be a schema, or hold some."""
    if isinstance(part, list):
        return part
    inner: list[Any] = []
    for keyword, value in part.items() if isinstance(part, dict) else ():
        if keyword in BY_NAME and isinstance(value, dict):
            inner += value.values()
        elif keyword not in DATA:
            inner.append(value)
    return inner


def leaves_of(value: Any) -> Iterator[Any]:
    """Every value in it that holds no others, in their order; names of an object are none."""
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, dict | list):
            left += reversed(part.values() if isinstance(part, dict) else part)
        else:
            yield part


def combined_in(schema: Any) -> Iterator[list[dict[str, Any]]]:
    """Groups of its schemas of which two may limit one number, which has to be valid by both.

    A reference may add any schema to its group: then all of them are one, which is the last, since
    it holds every other.
    """
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, dict) or not _combines(part):
            left += _inside(part)
            continue
        group = list(schemas_of(part))
        if any("$ref" in one for one in group):
            yield list(schemas_of(schema))
            return
        yield group


def _combines(part: dict[str, Any]) -> bool:
    """Whether a value has to be valid by more than one schema: the part itself may be one."""
    all_of = part.get("allOf")
    sources = [
        not part.keys().isdisjoint(LIMITS_OF_NUMBERS | INNER),
        *([True] * len(all_of) if isinstance(all_of, list) else ()),
        *(keyword in part for keyword in ("anyOf", "oneOf", "$ref")),
    ]
    return sum(sources) > 1 or ("properties" in part and "patternProperties" in part)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a number in JSON, where true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
