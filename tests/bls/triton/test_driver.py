"""Interruptions end a sequence's thread and calls without counting as engine failures."""

import threading
import time

import numpy as np
import pytest
import triton_python_backend_utils as triton
from receivers import Panic, Receiver
from scripted import SETTINGS, ids

from tandem.bls.effects import AwaitAhead, EngineCall, StartAhead
from tandem.bls.errors import Cancelled, EngineCallError, EngineTimeout
from tandem.bls.request import Request
from tandem.bls.triton.driver import Driver
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.sequence_caller import STOP_INTERVAL
from tandem.contract import engine as tensors

PATIENCE = 30
REQUEST = Request(prompt_ids=ids(1, 2, 3), max_tokens=8)


class HeldEngine:
    """Answer each call with one token. The first draft call is held until the test releases it."""

    def __init__(self):
        self.called, self.num_stops = [], 0
        self.arrived, self.let_go, self.stopped = (threading.Event() for _ in range(3))

    def __call__(self, request):
        if tensors.STOP in request.arrays:
            self.num_stops += 1
            self.stopped.set()
            return triton.InferenceResponse([])
        self.called.append(request.model_name)
        if request.model_name == "draft" and self.called.count("draft") == 1:
            self.arrived.set()
            assert self.let_go.wait(PATIENCE)
        outputs = {tensors.OUTPUT_IDS: [[[4]]], tensors.SEQUENCE_LENGTH: [[1]]}
        return triton.response_of({name: np.int32(value) for name, value in outputs.items()})


@pytest.fixture
def engine(pb):
    held = pb.InferenceRequest.answer = HeldEngine()
    yield held
    held.let_go.set()


class DraftThenVerify:
    """The steps of a round. failures: errors of the draft call, which don't end the round."""

    def __init__(self):
        self.failures = []

    def __call__(self):
        try:
            yield EngineCall("draft", REQUEST.prompt_ids, 1, seed=0)
        except EngineCallError as error:
            self.failures.append(error)
        yield EngineCall("target", REQUEST.prompt_ids, 1, seed=0)


@pytest.fixture
def interrupted(engine):
    """A driver that is interrupted during a draft call because another prompt failed."""
    steps, receiver = DraftThenVerify(), Receiver()
    driver = Driver(EngineClients(SETTINGS), steps(), REQUEST, receiver)
    driver.start()
    assert engine.arrived.wait(PATIENCE)
    reason = EngineTimeout("target", 60)
    driver.interrupt(reason)
    return driver, steps, receiver, reason


def test_interrupting_a_call_does_not_count_as_a_failure(engine, interrupted):
    _, steps, receiver, reason = interrupted
    engine.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is reason
    assert steps.failures == []
    assert engine.called == ["draft"]


def test_an_interruption_before_the_start_prevents_all_calls(engine):
    receiver, reason = Receiver(), Cancelled()
    driver = Driver(EngineClients(SETTINGS), DraftThenVerify()(), REQUEST, receiver)
    driver.interrupt(reason)
    driver.start()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is reason
    assert engine.called == []


def test_interrupting_a_hanging_call_does_not_count_as_a_failure(engine, interrupted):
    driver, steps, receiver, reason = interrupted
    driver.check(time.monotonic() + SETTINGS.draft.timeout + 1)
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is reason
    assert steps.failures == []
    assert engine.called == ["draft"]


def test_a_stop_is_repeated_until_its_call_ends(engine, interrupted):
    driver, *_ = interrupted
    assert engine.stopped.wait(PATIENCE)
    engine.stopped.clear()
    driver.check(0.0)  # too early to repeat the stop
    driver.check(time.monotonic() + 2 * STOP_INTERVAL)
    assert engine.stopped.wait(PATIENCE)
    assert engine.num_stops == 2


def test_a_call_is_not_stopped_before_it_is_interrupted(engine):
    driver = Driver(EngineClients(SETTINGS), DraftThenVerify()(), REQUEST, Receiver())
    driver.start()
    assert engine.arrived.wait(PATIENCE)
    driver.check(time.monotonic() + 2 * STOP_INTERVAL)
    driver.interrupt(Cancelled())
    assert engine.stopped.wait(PATIENCE)
    assert engine.num_stops == 1


def test_an_unexpected_error_in_the_loop_reaches_the_client():
    def steps():
        raise Panic("index out of bounds")
        yield

    receiver = Receiver()
    Driver(EngineClients(SETTINGS), steps(), REQUEST, receiver).start()
    assert receiver.end.wait(PATIENCE)
    assert str(receiver.error) == "internal error in the decoding loop; see the server's log"


def draft_ahead():
    """Make one draft call during a verification."""
    return (yield EngineCall("draft", REQUEST.prompt_ids, 1, seed=0))


VERIFICATION = EngineCall("target", REQUEST.prompt_ids, 1, seed=0)


def run(steps):
    receiver = Receiver()
    driver = Driver(EngineClients(SETTINGS), steps, REQUEST, receiver)
    driver.start()
    return driver, receiver


def test_unawaited_drafting_ahead_is_stopped(engine):
    def steps():
        yield StartAhead(draft_ahead())
        yield VERIFICATION
        assert engine.arrived.wait(PATIENCE)
        yield StartAhead(draft_ahead())
        assert engine.stopped.wait(PATIENCE)

    _, receiver = run(steps())
    assert engine.stopped.wait(PATIENCE)
    engine.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None


def test_drafting_ahead_continues_on_a_new_thread_after_a_timeout(engine):
    given_up, settled = threading.Event(), []

    def steps():
        yield StartAhead(draft_ahead())
        yield VERIFICATION
        assert given_up.wait(PATIENCE)
        yield StartAhead(draft_ahead())
        yield VERIFICATION
        settled.append((yield AwaitAhead(PATIENCE)))

    driver, receiver = run(steps())
    assert engine.arrived.wait(PATIENCE)
    driver.check(time.monotonic() + SETTINGS.draft.timeout + 1)
    given_up.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert [answer.tokens.tolist() for answer in settled] == [[4]]
