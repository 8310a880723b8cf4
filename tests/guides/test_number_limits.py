"""Accepted numbers are exact multiples, and divisors that overflow in llguidance are rejected."""

import json
from decimal import Decimal

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_guides import fits, matcher, rejection

from tandem.guides.errors import GuideError, keywords_of


@pytest.mark.parametrize(
    ("keyword", "bound"),
    [("minimum", 2**63), ("exclusiveMinimum", 1e30), ("maximum", -(2**70)), ("minimum", 1e300)],
)
def test_bounds_that_no_integer_of_64_bits_meets_are_rejected(keyword, bound):
    other = {"minimum": "maximum", "maximum": "minimum"}.get(keyword, "maximum")
    schema = {"type": "integer", keyword: bound, other: 10 * bound}
    assert rejection("json_schema", json.dumps(schema)) == (
        f"{keyword} must be between -2^63 and 2^63; got {bound!r}"
    )
    assert fits("json_schema", json.dumps({"type": "integer", "maximum": 2**64 - 1}), "5")


COMMON = (
    "multipleOf of combined schemas must have a least common multiple of at most 65535 units in "
    "the last place; use smaller ones"
)


def multiples(divisor):
    return json.dumps({"type": "number", "multipleOf": divisor})


@pytest.mark.parametrize("divisor", [2**32, 500_000_000, 4e9, 429_496_730, 123456.78912, 3e-9])
def test_a_divisor_with_too_many_digits_is_rejected(divisor):
    number = Decimal(repr(divisor))
    got = f"multipleOf has too many digits; got {number}; use at most 8, including zeros"
    assert rejection("json_schema", multiples(divisor)) == got


@pytest.mark.parametrize("divisor", [0.07, 0.57, 1.005])
def test_a_divisor_that_the_library_would_round_is_rejected(divisor):
    reason = rejection("json_schema", multiples(divisor))
    assert reason.startswith("Value for 'multipleOf' has too many digits")
    assert keywords_of(reason) == ["multipleOf"]


@pytest.mark.parametrize("divisor", [0, -1, -0.5, 0.0])
def test_a_divisor_must_be_greater_than_0(divisor):
    got = f"multipleOf must be greater than 0; got {divisor}"
    assert rejection("json_schema", multiples(divisor)) == got


@pytest.mark.parametrize(
    "combined",
    [
        {"allOf": [{"multipleOf": 100_000}, {"multipleOf": 50_000}]},
        {
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}],
            "$defs": {"a": {"multipleOf": 1e5}},
        },
        {"multipleOf": 0.001, "anyOf": [{"multipleOf": 66}]},
        {"properties": {"a": {"multipleOf": 500}}, "patternProperties": {"a": {"multipleOf": 501}}},
    ],
    ids=json.dumps,
)
def test_a_common_multiple_that_overflows_is_rejected(combined):
    assert (
        rejection("json_schema", json.dumps({"type": ["integer", "object"], **combined})) == COMMON
    )


def test_a_common_multiple_that_fits_is_enforced():
    both = json.dumps({"allOf": [{"type": "number", "multipleOf": 0.06}, {"multipleOf": 0.5}]})
    assert fits("json_schema", both, "1.5")
    assert not any(fits("json_schema", both, text) for text in ("0.06", "0.5", "1", "0.3"))
    apart = {"properties": {"a": {"multipleOf": 100_000}, "b": {"multipleOf": 50_001}}}
    matcher("json_schema", json.dumps(apart))


@given(
    st.decimals("0.0001", 3000, places=4).map(float) | st.integers(1, 10**6),
    st.decimals(-5000, 5000, places=4) | st.integers(-(10**7), 10**7).map(Decimal),
    st.integers(-50, 50),
)
@settings(max_examples=12)  # divisors with many digits need large automatons
def test_accepted_numbers_are_multiples(divisor, number, times):
    exact = Decimal(repr(divisor))
    for value in (number, times * exact):
        try:
            taken = fits("json_schema", multiples(divisor), str(value))
        except GuideError:
            assume(False)
        assert not taken or value % exact == 0


@pytest.mark.parametrize("divisor", [0.01, 0.1, 0.25, 2.5, 3, 0.125])
def test_multiples_with_all_decimals_of_the_divisor_are_accepted(divisor):
    for times in range(-9, 10):
        assert fits("json_schema", multiples(divisor), str(times * Decimal(repr(divisor))))
