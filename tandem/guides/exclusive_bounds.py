"""Rejects exclusive bounds that the library treats as inclusive.

llguidance 1.9 treats an exclusive bound as inclusive if it is an integer and the other bound has
the same integer part. For example, it allows 1 for `{"exclusiveMinimum": 1, "maximum": 1.5}`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Literal

from tandem.guides.errors import GuideError
from tandem.guides.schema_parts import is_number, iter_combined, iter_schemas

Side = Literal["Minimum", "Maximum"]
HUGE = 2**63


def check_exclusive_bounds(schema: Any) -> None:
    """Raise GuideError for exclusive bounds that the library may treat as inclusive."""
    for part in iter_schemas(schema):
        _check([part])
    for parts in iter_combined(schema):
        _check(parts)


def _check(parts: list[dict[str, Any]]) -> None:
    """Reject bounds that are too close. parts: schemas that may apply to the same number."""
    low, strictly_low = _bounds(parts, "Minimum")
    high, strictly_high = _bounds(parts, "Maximum")
    pairs = [*_too_close(strictly_low, high), *_too_close(low, strictly_high)]
    if pairs:
        one, other = pairs[0]
        raise GuideError(
            f"exclusiveMinimum and exclusiveMaximum must be at least 1 away from the other bound "
            f"if they are integers; got {one:g} and {other:g}"
        )


def _bounds(parts: Iterable[dict[str, Any]], side: Side) -> tuple[set[float], set[float]]:
    """Return all bounds on one side, and the exclusive bounds that are integers."""
    among: set[float] = set()
    exclusive: set[float] = set()
    for part in parts:
        bound, strict = part.get(side.lower()), part.get(f"exclusive{side}")
        among |= _number(bound)
        exclusive |= _number(bound if strict is True else strict)  # draft-04 has a boolean here
    return among | exclusive, {bound for bound in exclusive if bound.is_integer()}


def _number(value: Any) -> set[float]:
    """Return a set with the bound, or an empty set if the library doesn't accept the value."""
    return {float(value)} if is_number(value) and abs(value) < HUGE else set()


def _too_close(low: Iterable[float], high: Iterable[float]) -> list[tuple[float, float]]:
    """Return pairs of a lower bound and the next upper bound that are less than 1 apart."""
    uppers = sorted(high)
    next_ones = ((one, bisect_right(uppers, one)) for one in sorted(low))
    return [(one, uppers[at]) for one, at in next_ones if at < len(uppers) and uppers[at] - one < 1]
