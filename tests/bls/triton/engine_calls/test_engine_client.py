"""The timeout of a draft call grows with the length of the context."""

import pytest

from tandem.bls.triton.engine_calls.engine_client import draft_timeout


@pytest.mark.parametrize(
    ("context", "seconds"),
    [(1, 5.0), (2_048, 5.0), (4_096, 10.0), (20_480, 50.0), (100_000, 60.0)],
)
def test_the_draft_timeout_grows_with_the_context(context, seconds):
    assert draft_timeout(context, 5.0, at_most=60.0) == seconds


def test_the_draft_timeout_is_at_least_the_timeout_in_the_profile():
    assert draft_timeout(100_000, 5.0, at_most=2.0) == 5.0
