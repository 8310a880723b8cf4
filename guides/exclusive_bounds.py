"""Exclusive bounds of numbers that the library takes and gets wrong, so that they are refused here.

llguidance 1.9 lets a number be its exclusive bound where that is an integer and the other bound has
the same integer part: 1 fits `{"exclusiveMinimum": 1, "maximum": 1.5}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from tandem.guides.errors import GuideError

LOW, HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
HUGE = 2**63
# Without one of these in a schema there is nothing to look for: JSON may spell letters as `\u0065`.
SIGNS = ('"exclusiveM', "\\u")


def check_exclusive_bounds(schema: str) -> None:
    """Raise GuideError for a schema whose answers might not be valid by it."""
    if not any(sign in schema for sign in SIGNS):
        return
    try:
        read = json.loads(schema)
    except (ValueError, RecursionError):
        return  # the library says what is wrong with it
    for part in _parts(read):
        low, high = _bounds(part)
        if high - low < 1:
            raise GuideError(
                f"exclusiveMinimum and exclusiveMaximum are not supported as integers that are "
                f"less than 1 away from the other bound: {low:g} and {high:g} given"
            )


def _parts(read: Any) -> Iterator[dict[str, Any]]:
    """Every object in it."""
    left = [read]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left += part.values()
        elif isinstance(part, list):
            left += part


def _bounds(part: dict[str, Any]) -> tuple[float, float]:
    """Return the tightest bounds of a part, infinite where no exclusive one is an integer."""
    parts = [part, *(p for p in _list(part.get("allOf")) if isinstance(p, dict))]
    found = {name: _numbers(parts, name) for name in (*LOW, *HIGH)}
    exclusive = found["exclusiveMinimum"] + found["exclusiveMaximum"]
    if not any(bound.is_integer() for bound in exclusive):
        return -math.inf, math.inf
    low = max((bound for name in LOW for bound in found[name]), default=-math.inf)
    return low, min((bound for name in HIGH for bound in found[name]), default=math.inf)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(parts: list[dict[str, Any]], name: str) -> list[float]:
    values = [part.get(name) for part in parts]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return [float(v) for v in numbers if abs(v) < HUGE]  # the library takes no larger ones
