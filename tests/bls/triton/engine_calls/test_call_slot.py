"""A call is abandoned after its timeout, and the number of abandoned calls is limited."""

import time

import pytest

from tandem.bls.errors import Cancelled, EngineTimeout, EngineUnavailable
from tandem.bls.triton.calls import MAX_ABANDONED_CALLS, Abandoned, Calls, CallSlot


def test_a_call_is_abandoned_after_its_timeout(pb):
    calls = Calls()
    slot = CallSlot(calls)

    def abandon(_):
        deadline = slot.call.deadline
        assert slot.check(time.monotonic()) is None
        assert slot.check(deadline - 0.001) is None
        assert calls.abandoned == {}
        error = slot.check(deadline)
        assert isinstance(error, EngineTimeout)
        assert str(error) == "model 'target' failed: no response within 60 s"
        assert slot.check(deadline) is None
        assert calls.abandoned == {"target": 1}
        return pb.InferenceResponse([])

    pb.InferenceRequest.answer = abandon
    with pytest.raises(Abandoned):
        slot.infer("target", pb.InferenceRequest("target"), timeout=60)
    assert calls.abandoned == {"target": 0}


def test_a_call_that_has_returned_is_never_abandoned(pb):
    pb.InferenceRequest.answer = lambda _: pb.InferenceResponse([])
    calls = Calls()
    slot = CallSlot(calls)
    slot.infer("target", pb.InferenceRequest("target"), timeout=60, may_be_empty=True)
    assert slot.check(time.monotonic() + 61) is None
    assert calls.abandoned == {}


def test_a_model_with_too_many_abandoned_calls_gets_no_more_calls(pb):
    pb.InferenceRequest.answer = lambda _: pb.InferenceResponse([])
    calls = Calls()

    def call(model):
        CallSlot(calls).infer(model, pb.InferenceRequest(model), timeout=60, may_be_empty=True)

    for _ in range(MAX_ABANDONED_CALLS):
        calls.count_abandoned("target", +1)
    with pytest.raises(EngineUnavailable, match="32 of its calls never returned"):
        call("target")
    call("draft")
    calls.count_abandoned("target", -1)
    call("target")


def test_an_interrupted_sequence_makes_no_call(pb):
    pb.InferenceRequest.answer = lambda _: pytest.fail("it was called")
    slot = CallSlot(Calls())
    slot.interruption = Cancelled()
    with pytest.raises(Cancelled):
        slot.infer("target", pb.InferenceRequest("target"), timeout=60)
    assert slot.call is None
