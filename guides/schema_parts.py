"""What a JSON schema is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeGuard

# Where a schema holds schemas under names of its author's, and where it holds data.
BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
DATA: Final = ("const", "enum", "default", "examples")


def schemas_of(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and those in it, also where only a reference makes it one; no data."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            for keyword, inner in part.items():
                if keyword in BY_NAME and isinstance(inner, dict):
                    left += inner.values()
                elif keyword not in DATA:
                    left.append(inner)
        elif isinstance(part, list):
            left += part


def leaves_of(value: Any) -> Iterator[Any]:
    """Every value in it that holds no others, in their order; names of an object are none."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(item)
    else:
        yield value


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it is a number in JSON, where true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
