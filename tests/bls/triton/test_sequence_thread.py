"""Interruptions end a sequence's thread and calls without counting as engine failures."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import triton_python_backend_utils as triton
from live_triton import eventually
from receivers import Panic, Receiver, Runs
from scripted import SETTINGS, ids

from tandem.bls.admission import Admission, Reservation
from tandem.bls.errors import Cancelled, EngineCallError, EngineTimeout
from tandem.bls.ports import EngineCall
from tandem.bls.request import Request
from tandem.bls.triton.engine_calls import STOP_INTERVAL, EngineClients
from tandem.bls.triton.requests import SequenceState, SequenceThread
from tandem.contract import engine as tensors

PATIENCE = 30
REQUEST = Request(prompt_ids=ids(1, 2, 3), max_tokens=8)
DRAFT = EngineCall("draft", REQUEST.prompt_ids, 1, seed=0)
VERIFICATION = EngineCall("target", REQUEST.prompt_ids, 1, seed=0)


class HeldEngine:
    """Answer each call with one token. The test releases the first call of a model, which is held.

    holds: the model, by default the draft engine. error: what its calls fail with, if they do.
    """

    holds, error = "draft", None

    def __init__(self):
        self.called, self.num_stops = [], 0
        self.arrived, self.let_go, self.stopped = (threading.Event() for _ in range(3))

    def __call__(self, request):
        if tensors.STOP in request.arrays:
            self.num_stops += 1
            self.stopped.set()
            return triton.InferenceResponse([])
        self.called.append(request.model_name)
        if request.model_name == self.holds and self.called.count(self.holds) == 1:
            self.arrived.set()
            assert self.let_go.wait(PATIENCE)
        if request.model_name == self.holds and self.error:
            return triton.InferenceResponse(error=triton.TritonError(self.error))
        outputs = {tensors.OUTPUT_IDS: [[[4]]], tensors.SEQUENCE_LENGTH: [[1]]}
        return triton.response_of({name: np.int32(value) for name, value in outputs.items()})


@pytest.fixture
def engine(pb):
    held = pb.InferenceRequest.answer = HeldEngine()
    yield held
    held.let_go.set()


class DraftThenVerify:
    """A loop of one round. drafted: results of the draft call; failures: its errors.

    Neither ends the round.
    """

    request = REQUEST

    def __init__(self):
        self.drafted, self.failures = [], []
        self.drafts = True

    def run(self, ports):
        try:
            if self.drafts:
                self.drafted.append(ports.call(DRAFT))
        except EngineCallError as error:
            self.draft_failed(error)
        ports.call(VERIFICATION)

    def draft_failed(self, error):
        self.failures.append(error)
        self.drafts = False


@pytest.fixture
def interrupted(engine):
    """A driver that is interrupted during a draft call because another prompt failed."""
    steps, receiver = DraftThenVerify(), Receiver()
    driver = SequenceThread(EngineClients(SETTINGS), steps, receiver)
    driver.start()
    assert engine.arrived.wait(PATIENCE)
    reason = EngineTimeout("target", 60)
    driver.interrupt(reason)
    return driver, steps, receiver, reason


@pytest.mark.parametrize("error", [None, "it was stopped"])
def test_interrupting_a_call_does_not_count_as_a_failure(engine, interrupted, error):
    engine.error = error
    _, steps, receiver, reason = interrupted
    engine.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is reason
    assert steps.failures == steps.drafted == []  # the result of a stopped call is incomplete
    assert engine.called == ["draft"]


def test_an_engines_error_reaches_the_loop(engine):
    engine.error = "it broke"
    engine.let_go.set()
    steps, receiver = DraftThenVerify(), Receiver()
    SequenceThread(EngineClients(SETTINGS), steps, receiver).start()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert [str(error) for error in steps.failures] == ["model 'draft' failed: it broke"]
    assert engine.called == ["draft", "target"]


def test_an_interruption_before_the_start_prevents_all_calls(engine):
    receiver, reason = Receiver(), Cancelled()
    driver = SequenceThread(EngineClients(SETTINGS), DraftThenVerify(), receiver)
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
    driver = SequenceThread(EngineClients(SETTINGS), DraftThenVerify(), Receiver())
    driver.start()
    assert engine.arrived.wait(PATIENCE)
    driver.check(time.monotonic() + 2 * STOP_INTERVAL)
    driver.interrupt(Cancelled())
    assert engine.stopped.wait(PATIENCE)
    assert engine.num_stops == 1


def run(function):
    receiver = Receiver()
    driver = SequenceThread(EngineClients(SETTINGS), Runs(function), receiver)
    driver.start()
    return driver, receiver


def test_an_unexpected_error_in_the_loop_reaches_the_client_and_the_log(pb):
    def panic(_):
        raise Panic("index out of bounds")

    _, receiver = run(panic)
    assert receiver.end.wait(PATIENCE)
    assert str(receiver.error) == "internal error in the decoding loop; see the server's log"
    assert any("index out of bounds" in line for line in pb.Logger.lines)


def test_an_overdue_draft_call_does_not_end_the_sequence(engine):
    loop, receiver = DraftThenVerify(), Receiver()
    driver = SequenceThread(EngineClients(SETTINGS), loop, receiver)
    driver.start()
    assert engine.arrived.wait(PATIENCE)
    driver.check(time.monotonic() + SETTINGS.draft.timeout + 1)
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert [type(error) for error in loop.failures] == [EngineTimeout]
    assert engine.called == ["draft", "target"]
    engine.let_go.set()  # the abandoned thread ends without a trace
    time.sleep(0.05)
    assert engine.called == ["draft", "target"]
    assert len(receiver.ends) == 1


def test_an_overdue_target_call_ends_the_sequence(engine):
    engine.holds = "target"
    loop, receiver = DraftThenVerify(), Receiver()
    driver = SequenceThread(EngineClients(SETTINGS), loop, receiver)
    driver.start()
    assert engine.arrived.wait(PATIENCE)
    driver.check(time.monotonic() + SETTINGS.target.timeout + 1)
    assert receiver.end.wait(PATIENCE)
    assert isinstance(receiver.error, EngineTimeout)
    assert engine.called == ["draft", "target"]
    assert loop.failures == []


def test_an_overdue_detokenizer_call_ends_the_sequence_even_after_a_draft(engine):
    engine.holds = SETTINGS.postprocessing_model
    loop, receiver = Runs(lambda ports: (ports.call(DRAFT), ports.decode(ids(1), 0))), Receiver()
    driver = SequenceThread(EngineClients(SETTINGS), loop, receiver)
    driver.start()
    assert engine.arrived.wait(PATIENCE)
    driver.check(time.monotonic() + 1000)
    assert receiver.end.wait(PATIENCE)
    assert isinstance(receiver.error, EngineTimeout)
    assert loop.failures == []


def test_unawaited_drafting_ahead_is_stopped(engine):
    def rounds(ports):
        ports.call_ahead(DRAFT)
        ports.call(VERIFICATION)
        assert engine.arrived.wait(PATIENCE)
        assert ports.call_ahead(DRAFT) is None
        assert engine.stopped.wait(PATIENCE)

    _, receiver = run(rounds)
    assert engine.stopped.wait(PATIENCE)
    engine.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None


def test_an_interruption_stops_drafting_ahead(engine):
    drafting, interrupted = threading.Event(), threading.Event()

    def rounds(ports):
        ports.call_ahead(DRAFT)
        assert engine.arrived.wait(PATIENCE)
        drafting.set()
        assert interrupted.wait(PATIENCE)

    driver, receiver = run(rounds)
    assert drafting.wait(PATIENCE)
    driver.interrupt(Cancelled())
    assert engine.stopped.wait(PATIENCE)
    interrupted.set()
    engine.let_go.set()
    assert receiver.end.wait(PATIENCE)


def test_drafting_ahead_continues_on_a_new_thread_after_a_timeout(engine):
    given_up, settled = threading.Event(), []

    def rounds(ports):
        ports.call_ahead(DRAFT)
        ports.call(VERIFICATION)
        assert given_up.wait(PATIENCE)
        ahead = ports.call_ahead(DRAFT)
        ports.call(VERIFICATION)
        settled.append(ahead.result(PATIENCE))

    driver, receiver = run(rounds)
    assert engine.arrived.wait(PATIENCE)
    driver.check(time.monotonic() + SETTINGS.draft.timeout + 1)
    given_up.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert [answer.tokens.tolist() for answer in settled] == [[4]]


class WaitingLoop:
    """A loop that needs more KV blocks than are free. The test continues it before it asks."""

    statistics = None

    def __init__(self):
        self.request = Request(prompt_ids=ids(1, 2, 3), max_tokens=1000)
        self.arrived, self.let_go, self.waits = (threading.Event() for _ in range(3))

    def run(self, ports):
        self.arrived.set()
        assert self.let_go.wait(PATIENCE)
        waits = not ports.reserve(500)
        self.waits.set()
        return waits


@pytest.mark.parametrize("interrupted_first", [True, False])
def test_an_interrupted_sequence_does_not_wait_for_kv_blocks(engine, interrupted_first):
    admission = Admission(max_running=2, max_waiting=2, kv_blocks=8)
    loop, ended, failures = WaitingLoop(), threading.Event(), []
    metrics = SimpleNamespace(count=lambda *_: ended.set())
    request = SimpleNamespace(arrival_ns=0, fail=failures.append)
    state = SequenceState(
        0,
        loop,
        "",
        request,
        metrics=metrics,
        admission=admission,
        reservation=Reservation(4),
        clients=EngineClients(SETTINGS),
        decode=None,
    )
    for reservation in (Reservation(4), state.reservation):
        admission.arrive(1).enter([reservation])
    assert loop.arrived.wait(PATIENCE)
    reason = Cancelled()
    if interrupted_first:
        state.interrupt(reason)
    loop.let_go.set()
    if not interrupted_first:
        assert loop.waits.wait(PATIENCE)
        assert (admission.running, admission.waiting) == (1, 1)
        state.interrupt(reason)
    assert ended.wait(PATIENCE)
    assert eventually(lambda: failures == [reason])
    assert (admission.running, admission.waiting) == (1, 0)
    assert not state.is_running
