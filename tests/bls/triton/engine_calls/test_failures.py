"""What callers are told of engine calls that failed."""

import pytest

from tandem.bls.triton.engine_calls.failures import failure

LOST = "Stub process 'target_0_0' is not healthy."


def test_a_model_whose_process_is_lost_is_unavailable():
    error = failure("target", LOST)
    assert error.code == "UNAVAILABLE"
    assert error.line == f"model_unavailable: model 'target' failed: {LOST}"


@pytest.mark.parametrize("said", [f"it said: {LOST}", "Stub process 'target_0_0' has said no"])
def test_other_failures_keep_their_code(said):
    assert failure("target", said).code == "INTERNAL"
