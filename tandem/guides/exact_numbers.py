"""Rejects numbers in schemas that the library would round.

llguidance 1.9 reads the digits of a number and its power of ten as two floats, so that
1456051.6399670597 becomes 1456051.6399670595. It reads integers as floats too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from tandem.guides.errors import GuideError, shorten
from tandem.guides.schema_parts import is_number, iter_leaves, iter_schemas

CONSTANTS = ("const", "enum")
BOUNDS = ("minimum", "maximum")
OTHERS = ("exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# The library itself rejects larger bounds.
LARGEST = 2**63 - 1
INTEGER_LIMIT = 2**64


def check_numbers(schema: Any) -> None:
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
