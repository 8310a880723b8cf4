"""Calls that are waited for: who gives them up, and when one counts as lost."""

import time

import pytest

from tandem.bls.errors import EngineUnavailable
from tandem.bls.triton.awaited import MAX_LOST_CALLS, Lost, LostCalls, Wait


def test_a_call_is_lost_past_its_own_time_out_and_no_sooner():
    lost = LostCalls()
    wait = Wait(lost)
    call = wait.begin("target", "1", timeout=60)
    assert wait.give_up_if_overdue(time.monotonic()) is None
    assert wait.give_up_if_overdue(call.deadline - 0.001) is None
    assert wait.call is call
    assert lost.by_model == {}
    assert wait.give_up_if_overdue(call.deadline) is call
    assert lost.by_model == {"target": 1}
    with pytest.raises(Lost):
        wait.end(call)
    assert lost.by_model == {"target": 0}


def test_a_model_that_lost_too_many_is_called_no_more_and_others_are():
    lost = LostCalls()
    for _ in range(MAX_LOST_CALLS):
        lost.given_up("target")
    with pytest.raises(EngineUnavailable, match="has left 32 calls unanswered"):
        Wait(lost).begin("target", "1", timeout=60)
    assert Wait(lost).begin("draft", "1", timeout=60)
    lost.came_back("target")
    assert Wait(lost).begin("target", "1", timeout=60)
