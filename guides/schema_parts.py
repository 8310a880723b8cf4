"""What a JSON schema is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Every object in it: a reference may make a schema of each."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left += part.values()
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
