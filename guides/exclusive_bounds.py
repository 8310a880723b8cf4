"""Exclusive bounds of numbers that the library takes and gets wrong, so that they are refused here.

llguidance 1.9 lets a number be its exclusive bound where that is an integer and the other bound has
the same integer part: 1 fits `{"exclusiveMinimum": 1, "maximum": 1.5}`.
"""

from __future__ import annotations

import math
from typing import Any

from tandem.guides.errors import GuideError
from tandem.guides.schema_parts import is_number, schemas_of

LOW, HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
HUGE = 2**63


def check_exclusive_bounds(schema: Any) -> None:
    """Raise GuideError for a schema whose answers might not be valid by it."""
    for part in schemas_of(schema):
        low, high = _bounds(part)
        if high - low < 1:
            raise GuideError(
                f"exclusiveMinimum and exclusiveMaximum are not supported as integers that are "
                f"less than 1 away from the other bound: {low:g} and {high:g} given"
            )


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
    numbers = filter(is_number, (part.get(name) for part in parts))
    return [float(v) for v in numbers if abs(v) < HUGE]  # the library takes no larger ones
