"""Rejects exclusive bounds that the library gets wrong.

llguidance 1.9 includes an exclusive bound if it is an integer and the other bound has the same
integer part: it allows 1 for `{"exclusiveMinimum": 1, "maximum": 1.5}`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Literal

from tandem.guides.errors import GuideError
from tandem.guides.schema_parts import combined_in, is_number, schemas_of

Side = Literal["Minimum", "Maximum"]
HUGE = 2**63


def check_exclusive_bounds(schema: Any) -> None:
    """Raise GuideError for a schema with exclusive bounds that the library may include."""
    for part in schemas_of(schema):
        _check([part])
    for parts in combined_in(schema):
        _check(parts)


def _check(parts: list[dict[str, Any]]) -> None:
    """Reject bounds that are too close, if several parts may apply to one number."""
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
    """Return all bounds of a side, and the exclusive integers among them."""
    among: set[float] = set()
    exclusive: set[float] = set()
    for part in parts:
        bound, strict = part.get(side.lower()), part.get(f"exclusive{side}")
        among |= _number(bound)
        exclusive |= _number(bound if strict is True else strict)  # a boolean in draft-04
    return among | exclusive, {bound for bound in exclusive if bound.is_integer()}


def _number(value: Any) -> set[float]:
    """Return a bound; an empty set if it isn't a number that the library accepts."""
    return {float(value)} if is_number(value) and abs(value) < HUGE else set()


def _too_close(low: Iterable[float], high: Iterable[float]) -> list[tuple[float, float]]:
    """Return each lower bound with the next upper one, if that is less than 1 away."""
    uppers = sorted(high)
    next_ones = ((one, bisect_right(uppers, one)) for one in sorted(low))
    return [(one, uppers[at]) for one, at in next_ones if at < len(uppers) and uppers[at] - one < 1]
