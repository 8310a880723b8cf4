"""A request's own timeout is read from `infer` and from `generate`."""

from types import SimpleNamespace

import pytest

from tandem.bls.errors import BadRequest
from tandem.bls.triton.client import timeout_of


def requested(timeout):
    return SimpleNamespace(timeout=lambda: timeout)


@pytest.mark.parametrize(
    ("of_infer", "parameters", "timeout"),
    [
        (0, "", 0),
        (200_000, "", 200_000),
        (0, '{"timeout": 200000}', 200_000),
        (0, '{"timeout": 0, "priority": 1}', 0),
    ],
)
def test_the_timeout_of_generate_counts_too(of_infer, parameters, timeout):
    assert timeout_of(requested(of_infer), parameters) == timeout


@pytest.mark.parametrize("value", ["-1", '"1"', "1.5", "true", "null"])
def test_an_invalid_timeout_of_generate_is_rejected(value):
    with pytest.raises(BadRequest, match="parameter 'timeout' must be a number of microseconds"):
        timeout_of(requested(0), f'{{"timeout": {value}}}')
