"""Rejects `multipleOf` if the library's integers would overflow.

llguidance 1.9 stores a divisor as a 32-bit integer and a power of ten. Larger values wrap around,
so that `{"multipleOf": 500000000}` doesn't allow 500000000. The least common multiple of two
divisors wraps around too: for 100000 and 50000, the library computes 14100. The library itself
rejects divisors that it would round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from tandem.guides.errors import GuideError
from tandem.guides.schema_parts import is_number, iter_combined, iter_schemas

UINT32_RANGE = 2**32
# The product of two numbers up to this limit fits into 32 bits.
LARGEST_COMMON = 2**16 - 1


def check_multiples(schema: Any) -> None:
    """Raise GuideError for a schema whose multiples the library would get wrong."""
    for divisor in _divisors(iter_schemas(schema)):
        _check(divisor)
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


def _check(divisor: Decimal) -> None:
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
