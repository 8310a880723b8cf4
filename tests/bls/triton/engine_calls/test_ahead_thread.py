"""The thread makes one call at a time and always frees its slot."""

import threading
import time

import pytest
from ahead_engines import AHEAD, PATIENCE, REQUEST, Engines, Held
from live_triton import eventually
from scripted import ids

from tandem.bls.errors import Cancelled, EngineTimeout
from tandem.bls.ports import Branching, Draft, EngineCall
from tandem.bls.settings import MAX_AHEAD_THREADS
from tandem.bls.triton import engine_calls as module
from tandem.bls.triton.engine_calls import STOP_INTERVAL, AheadThread, EngineClients

CALL = EngineCall("draft", REQUEST.prompt_ids, 1, seed=0)


def test_stopping_drafting_ahead_before_its_start_prevents_all_calls(pb, monkeypatch):
    threads, engines, clients = [], Engines(), EngineClients(AHEAD)
    monkeypatch.setattr(module, "run_in_background", threads.append)
    pb.InferenceRequest.answer = engines
    thread = AheadThread.start_if_free(clients, REQUEST)
    result = thread.begin(CALL)
    thread.stop()
    assert thread.begin(CALL) is None  # the first call is still pending
    threading.Thread(target=threads[0], daemon=True).start()
    assert isinstance(result.exception(PATIENCE), Cancelled)
    assert not engines.draft.calls
    assert len(thread.begin(CALL).result(PATIENCE).tokens) == len(engines.draft.calls) == 1
    thread.close(lambda: None)


@pytest.fixture
def working(pb):
    """Yield a thread in a call, with its clients, result and hold."""
    hold, clients = Held("draft"), EngineClients(AHEAD)
    pb.InferenceRequest.answer = Engines(hold=hold)
    thread = AheadThread.start_if_free(clients, REQUEST)
    result = thread.begin(CALL)
    assert hold.arrived.wait(PATIENCE)
    yield thread, clients, result, hold
    hold.let_go.set()


def all_are_free(clients):
    """Return whether all slots for threads are free."""
    taken = [clients.ahead_threads.acquire(blocking=False) for _ in range(MAX_AHEAD_THREADS)]
    for _ in filter(None, taken):
        clients.ahead_threads.release()
    return all(taken)


def test_the_stop_of_a_draft_ahead_call_is_repeated_until_it_ends(pb, working):
    thread, *_ = working
    stops = pb.InferenceRequest.answer.stops
    thread.stop()
    assert eventually(lambda: len(stops) == 1)
    thread.check(time.monotonic() + STOP_INTERVAL)
    assert eventually(lambda: len(stops) == 2)


@pytest.mark.parametrize("stopped", [False, True])
def test_branches_of_a_stopped_draft_ahead_call_are_dropped(pb, stopped):
    """The stopped call was shorter than planned, so it would distort the measured times."""
    hold = Held("branches")
    pb.InferenceRequest.answer = Engines(hold=hold)
    thread = AheadThread.start_if_free(EngineClients(AHEAD), REQUEST)
    call = EngineCall("draft", REQUEST.prompt_ids, 4, 0, Draft(ids(4)), Branching((0, 1), (0, 2)))
    result = thread.begin(call)
    assert hold.arrived.wait(PATIENCE)
    if stopped:
        thread.stop()
    hold.let_go.set()
    assert len(result.result(PATIENCE).branches) == (0 if stopped else 1)
    thread.close(lambda: None)


def test_a_draft_ahead_call_that_exceeds_its_timeout_frees_its_slot(working):
    thread, clients, result, _ = working
    thread.check(time.monotonic())
    assert not thread.lost
    thread.check(time.monotonic() + AHEAD.draft.timeout + 1)
    assert isinstance(result.exception(0), EngineTimeout)
    assert thread.lost
    assert thread.begin(CALL) is None
    assert all_are_free(clients)
    ended = []
    thread.close(lambda: ended.append(1))
    assert ended == [1]
    assert all_are_free(clients)


def test_the_engine_stops_a_draft_ahead_call_that_exceeds_its_timeout(pb, working):
    thread, *_ = working
    thread.check(time.monotonic() + AHEAD.draft.timeout + 1)
    assert eventually(lambda: len(pb.InferenceRequest.answer.stops) == 1)


def test_a_closed_thread_frees_its_slot_after_its_call_ends(working):
    thread, clients, _, hold = working
    ended = threading.Event()
    thread.close(ended.set)
    assert not ended.is_set()
    assert not all_are_free(clients)
    hold.let_go.set()
    assert ended.wait(PATIENCE)
    assert eventually(lambda: all_are_free(clients))
