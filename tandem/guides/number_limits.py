"""Rejects numbers in schemas that the library would misread.

- *Exact numbers*: llguidance 1.9 reads the digits of a number and its power of ten as two floats,
  so that 1456051.6399670597 becomes 1456051.6399670595. It reads integers as floats too.
- *Exclusive bounds*: it treats an exclusive bound as inclusive if it is an integer and the other
  bound has the same integer part, for example in `{"exclusiveMinimum": 1, "maximum": 1.5}`.
- *Large bounds*: it replaces those beyond 2^63 by the nearest integer of 64 bits.
- *Multiples*: it stores a divisor as a 32-bit integer and a power of ten. Larger values wrap
  around, so that `{"multipleOf": 500000000}` doesn't allow 500000000. The least common multiple of
  two divisors wraps around too: for 100000 and 50000, it computes 14100. The library itself rejects
  divisors that it would round.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Literal

from tandem.guides.errors import GuideError, shorten
from tandem.guides.schema_parts import is_number, iter_combined, iter_leaves, iter_schemas

CONSTANTS = ("const", "enum")
BOUNDS = ("minimum", "maximum")
OTHERS = ("exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# The library itself rejects larger bounds.
LARGEST = 2**63 - 1
INTEGER_LIMIT = 2**64
# Signs of the bounds that must not be beyond the range. A maximum may be, such as a uint64's.
BEYOND = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}
Side = Literal["Minimum", "Maximum"]
HUGE = 2**63
UINT32_RANGE = 2**32
# The product of two numbers up to this limit fits into 32 bits.
LARGEST_COMMON = 2**16 - 1


def check_numbers(schema: Any) -> None:
    """Raise GuideError for a schema with numbers that the library would misread."""
    _check_exact(schema)
    _check_reach(schema)
    check_exclusive_bounds(schema)
    _check_multiples(schema)


def _check_exact(schema: Any) -> None:
    """Raise GuideError for a schema with a number that would be rounded or isn't finite."""
    for part in iter_schemas(schema):
        for keyword, number in _numbers_of(part):
            if not _is_kept(number):
                raise GuideError(
                    f"numbers of '{keyword}' must be exact in floating point (at most 15 digits); "
                    f"got {shorten(repr(number))}"
                )
    for leaf in iter_leaves(schema):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise GuideError(f"numbers of a JSON schema must be finite; got {leaf}")


def _check_reach(schema: Any) -> None:
    """Raise GuideError for a bound beyond all integers of the library, which would ignore it."""
    for part in iter_schemas(schema):
        for keyword, sign in BEYOND.items():
            if is_number(part.get(keyword)) and sign * part[keyword] > LARGEST:
                raise GuideError(
                    f"{keyword} must be between -2^63 and 2^63; got {shorten(repr(part[keyword]))}"
                )


def _numbers_of(part: dict[str, Any]) -> Iterator[tuple[str, int | float]]:
    """Yield the keywords and numbers of a part."""
    for keyword in CONSTANTS:
        numbers = filter(is_number, iter_leaves(part.get(keyword)))
        yield from ((keyword, number) for number in numbers)
    for keyword in (*BOUNDS, *OTHERS):
        value = part.get(keyword)
        if is_number(value) and not (keyword in BOUNDS and abs(value) >= LARGEST):
            yield keyword, value


def _is_kept(number: int | float) -> bool:
    """Return whether the library reads a number exactly."""
    if isinstance(number, int):
        return abs(number) < INTEGER_LIMIT and Decimal(repr(float(number))) == number
    if not math.isfinite(number):
        return False
    _, digits, power = Decimal(repr(number)).as_tuple()
    whole, ten = float("".join(map(str, digits))), float(f"1e{abs(int(power))}")
    return (whole * ten if int(power) > 0 else whole / ten) == abs(number)


def check_exclusive_bounds(schema: Any) -> None:
    """Raise GuideError for exclusive bounds that the library may treat as inclusive."""
    for part in iter_schemas(schema):
        _check_distance([part])
    for parts in iter_combined(schema):
        _check_distance(parts)


def _check_distance(parts: list[dict[str, Any]]) -> None:
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
        among |= _bound(bound)
        exclusive |= _bound(bound if strict is True else strict)  # draft-04 has a boolean here
    return among | exclusive, {bound for bound in exclusive if bound.is_integer()}


def _bound(value: Any) -> set[float]:
    """Return a set with the bound, or an empty set if the library doesn't accept the value."""
    return {float(value)} if is_number(value) and abs(value) < HUGE else set()


def _too_close(low: Iterable[float], high: Iterable[float]) -> list[tuple[float, float]]:
    """Return pairs of a lower bound and the next upper bound that are less than 1 apart."""
    uppers = sorted(high)
    next_ones = ((one, bisect_right(uppers, one)) for one in sorted(low))
    return [(one, uppers[at]) for one, at in next_ones if at < len(uppers) and uppers[at] - one < 1]


def _check_multiples(schema: Any) -> None:
    """Raise GuideError for a schema whose multiples the library would get wrong."""
    for divisor in _divisors(iter_schemas(schema)):
        _check_divisor(divisor)
    for parts in iter_combined(schema):
        divisors = _divisors(parts)
        if divisors and _common(divisors) > LARGEST_COMMON:
            raise GuideError(
                "multipleOf of combined schemas must have a least common multiple of at most "
                f"{LARGEST_COMMON} units in the last place; use smaller ones"
            )


def _divisors(parts: Iterable[dict[str, Any]]) -> list[Decimal]:
    numbers = [part["multipleOf"] for part in parts if "multipleOf" in part]
    return [Decimal(repr(number)) for number in numbers if is_number(number)]


def _check_divisor(divisor: Decimal) -> None:
    if divisor <= 0:
        raise GuideError(f"multipleOf must be greater than 0; got {divisor}")
    coefficient, decimals = _scale(divisor)
    if 10 * coefficient + 9 * 10**decimals >= UINT32_RANGE:
        raise GuideError(
            f"multipleOf has too many digits; got {divisor}; use at most 8, including zeros"
        )


def _scale(divisor: Decimal) -> tuple[int, int]:
    """Return a divisor's digits as an integer, and its number of decimal places."""
    decimals = max(0, -int(divisor.normalize().as_tuple().exponent))
    return int(divisor.scaleb(decimals)), decimals


def _common(divisors: list[Decimal]) -> int:
    """Return the least common multiple, in units of the last decimal place.

    Stops when the multiple is too large, because thousands of divisors may have a huge one.
    """
    max_places = max(_scale(divisor)[1] for divisor in divisors)
    common = 1
    for divisor in divisors:
        common = math.lcm(common, int(divisor.scaleb(max_places)))
        if common > LARGEST_COMMON:
            break
    return common
