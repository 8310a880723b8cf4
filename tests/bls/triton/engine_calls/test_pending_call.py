"""A call is abandoned after its timeout, and the number of abandoned calls is limited."""

import time

import pytest

from tandem.bls.errors import EngineUnavailable
from tandem.bls.triton.engine_calls.pending_call import (
    MAX_ABANDONED_CALLS,
    Abandoned,
    AbandonedCalls,
    CallSlot,
)


def test_a_call_is_abandoned_after_its_timeout():
    abandoned = AbandonedCalls()
    slot = CallSlot(abandoned)

    def abandon():
        with slot.pending("target", "1", timeout=60) as call:
            assert slot.abandon_if_overdue(time.monotonic()) is None
            assert slot.abandon_if_overdue(call.deadline - 0.001) is None
            assert slot.call is call
            assert abandoned.by_model == {}
            assert slot.abandon_if_overdue(call.deadline) is call
            assert abandoned.by_model == {"target": 1}

    with pytest.raises(Abandoned):
        abandon()
    assert abandoned.by_model == {"target": 0}


def test_a_model_with_too_many_abandoned_calls_gets_no_more_calls():
    abandoned = AbandonedCalls()
    slot = CallSlot(abandoned)
    for _ in range(MAX_ABANDONED_CALLS):
        abandoned.add("target", +1)
    with (
        pytest.raises(EngineUnavailable, match="32 of its calls never returned"),
        slot.pending("target", "1", timeout=60),
    ):
        pass
    with slot.pending("draft", "1", timeout=60):
        pass
    abandoned.add("target", -1)
    with slot.pending("target", "1", timeout=60):
        pass
