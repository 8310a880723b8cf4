"""Multiples that the library computes with too few bits, so that they are refused here.

llguidance 1.9 keeps the divisor as an integer of 32 bits and a power of ten. What is larger wraps:
by `{"multipleOf": 500000000}`, 500000000 does not fit. So does the product from which it gets
the least common multiple of two: it makes 14100 of 100000 and 50000.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from tandem.guides.errors import GuideError
from tandem.guides.schema_parts import combined_in, is_number, schemas_of

MOST = 2**32
# The product of two that are no larger fits.
LARGEST_COMMON = 2**16 - 1


def check_multiples(schema: Any) -> None:
    """Raise GuideError for a schema by which some numbers would be taken for multiples."""
    for divisor in _divisors_of(schemas_of(schema)):
        _check(divisor)
    for parts in combined_in(schema):
        divisors = _divisors_of(parts)
        if divisors and _common(divisors) > LARGEST_COMMON:
            raise GuideError(
                "multipleOf is not supported where schemas are combined and the least common "
                f"multiple of all has more than {LARGEST_COMMON} units of its last digit; send "
                "smaller ones"
            )


def _divisors_of(parts: Iterable[dict[str, Any]]) -> list[Decimal]:
    given = [part["multipleOf"] for part in parts if "multipleOf" in part]
    return [Decimal(repr(number)) for number in given if is_number(number)]


def _check(divisor: Decimal) -> None:
    if divisor <= 0:
        raise GuideError(f"multipleOf must be greater than 0: {divisor} given")
    coefficient, decimals = _scaled(divisor)
    if _read(float(divisor)) != coefficient:
        raise GuideError(f"multipleOf may not be {divisor}, which would be rounded; send another")
    if 10 * coefficient + 9 * 10**decimals >= MOST:
        raise GuideError(f"multipleOf is not supported with so many digits: {divisor} given")


def _scaled(divisor: Decimal) -> tuple[int, int]:
    """Return it as an integer, and how many of its digits are decimals."""
    decimals = max(0, -int(divisor.normalize().as_tuple().exponent))
    return int(divisor.scaleb(decimals)), decimals


def _read(divisor: float) -> float:
    """Return what the library takes for its digits: of 0.07 it makes 7000000000000001."""
    while not divisor.is_integer():
        divisor *= 10
    return divisor


def _common(divisors: list[Decimal]) -> int:
    """Return the least common multiple, in units of the last digit that any of them has.

    Of some of them alone where it is too large by then: thousands of them have one of many digits.
    """
    most = max(_scaled(divisor)[1] for divisor in divisors)
    common = 1
    for divisor in divisors:
        common = math.lcm(common, int(divisor.scaleb(most)))
        if common > LARGEST_COMMON:
            break
    return common
