"""Drafting ahead never delays a sequence."""

import threading
import time

import pytest
import triton_python_backend_utils as triton
from ahead_engines import AHEAD, PATIENCE, REQUEST, Engines, Held
from live_triton import eventually
from receivers import Panic, Receiver
from scripted import ENDLESS, decoded, decoding_of, expected

from tandem.bls.errors import Cancelled
from tandem.bls.settings import MAX_AHEAD_THREADS
from tandem.bls.triton.engine_calls import EngineClients
from tandem.bls.triton.requests import SequenceThread


@pytest.fixture
def held():
    holding = Held("branches")
    yield holding
    holding.let_go.set()


def started(pb, engines, clients=None):
    """Start a sequence; return its driver, receiver and statistics."""
    pb.InferenceRequest.answer = engines
    decoding, receiver = decoding_of(REQUEST, AHEAD), Receiver()
    clients = clients or EngineClients(AHEAD)
    driver = SequenceThread(clients, decoding, receiver, decoded)
    driver.start()
    return driver, receiver, decoding.statistics


def test_drafting_ahead_uses_one_extra_thread_and_frees_it(pb):
    engines = Engines()
    clients = EngineClients(AHEAD)
    _, receiver, statistics = started(pb, engines, clients)
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_calls > 0
    assert statistics.num_drafter_failures == 0
    assert engines.threads["target"] >= engines.threads["draft"]
    assert len(engines.threads["branches"]) == 1
    assert engines.threads["branches"].isdisjoint(engines.threads["target"])
    for _ in range(MAX_AHEAD_THREADS):  # every slot becomes free again
        assert clients.ahead_threads.acquire(timeout=PATIENCE)


def test_hanging_branches_delay_neither_rounds_nor_the_answer(pb, held):
    engines = Engines(hold=held)
    driver, receiver, statistics = started(pb, engines)
    assert receiver.done.wait(PATIENCE)
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_hits == 0
    assert len(held.ids) == 1  # nothing else is drafted ahead while this call hangs
    assert eventually(lambda: held.ids[0] in engines.stops)
    # The sequence keeps its reservation until the draft engine has finished the call.
    driver.check(time.monotonic())
    assert not receiver.end.is_set()
    held.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None


def test_a_hanging_draft_engine_is_abandoned_at_its_timeout(pb, held):
    clients = EngineClients(AHEAD)
    driver, receiver, _ = started(pb, Engines(hold=held), clients)
    assert receiver.done.wait(PATIENCE)
    driver.check(time.monotonic() + AHEAD.draft.timeout + 1)
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert clients.calls.abandoned == {"draft": 1}
    assert all(clients.ahead_threads.acquire(timeout=PATIENCE) for _ in range(MAX_AHEAD_THREADS))
    held.let_go.set()
    assert eventually(lambda: clients.calls.abandoned == {"draft": 0})


def test_cancelling_stops_both_calls_and_waits_for_them(pb, held):
    verifying, verified = threading.Event(), threading.Event()

    def hold_both(kind, request_id):
        """Hold the branches and the concurrent verification."""
        held(kind, request_id)
        if kind == "target":
            verifying.set()
            assert verified.wait(PATIENCE)

    engines = Engines(hold=hold_both)
    driver, receiver, _ = started(pb, engines)
    assert held.arrived.wait(PATIENCE)
    assert verifying.wait(PATIENCE)
    driver.interrupt(Cancelled())
    assert eventually(lambda: len(set(engines.stops)) == 2)
    assert held.ids[0] in engines.stops
    verified.set()
    assert not receiver.end.wait(0.05)
    held.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert isinstance(receiver.error, Cancelled)


def test_nothing_is_drafted_ahead_without_a_free_thread(pb):
    clients = EngineClients(AHEAD)
    for _ in range(MAX_AHEAD_THREADS):
        clients.ahead_threads.acquire()
    engines = Engines(drafts_ahead=False)
    _, receiver, statistics = started(pb, engines, clients)
    assert receiver.end.wait(PATIENCE)
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_branches == 0
    assert not engines.threads["branches"]


def test_a_failed_branch_call_does_not_change_the_output(pb):
    def fail(kind, request_id):
        if kind == "branches":
            raise triton.TritonModelException("it broke")

    _, receiver, statistics = started(pb, Engines(hold=fail))
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_hits == 0


def test_errors_while_drafting_ahead_are_logged_without_changing_the_output(pb):
    def wrong(kind, request_id):
        if kind == "branches":
            raise Panic("boom")

    _, receiver, _ = started(pb, Engines(hold=wrong))
    assert receiver.end.wait(PATIENCE)
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert any("boom" in line for line in pb.Logger.lines)
