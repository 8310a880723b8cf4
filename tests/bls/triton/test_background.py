"""If no thread can start, only the affected request fails."""

import threading
from types import SimpleNamespace

import pytest
from live_triton import eventually
from receivers import Receiver, Runs
from scripted import ids

from tandem.bls.admission import ConcurrencyLimiter
from tandem.bls.errors import Cancelled, EngineCallError, Overloaded
from tandem.bls.ports import Chunk
from tandem.bls.settings import ForwarderSettings
from tandem.bls.triton.background import run_in_background
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.client import Sender
from tandem.bls.triton.engine_calls import AheadThread, DraftEngineHealth
from tandem.bls.triton.forward import ForwardEntry
from tandem.bls.triton.requests import SequenceThread


@pytest.fixture
def threads(monkeypatch):
    """Limit how many threads can start. threads.left: the remaining number, 1000 at first."""

    class Threads:
        left = 1000

    start = threading.Thread.start

    def start_one(thread):
        if Threads.left <= 0:
            raise RuntimeError("can't start new thread")
        Threads.left -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    return Threads


class Clients:
    """Clients for tests without engine calls."""

    calls = Calls()


def test_tasks_are_rejected_as_overloaded_if_no_thread_can_start(threads):
    threads.left = 0
    rejections, worked = [], []
    run_in_background(lambda: worked.append(1), rejections.append)
    assert [type(error) for error in rejections] == [Overloaded]
    with pytest.raises(Overloaded):
        run_in_background(lambda: worked.append(1))
    assert not worked


def test_decoding_waits_until_a_thread_can_start(threads):
    chunk, receiver = Chunk(ids(7), "", None, None, None), Receiver()
    thread = SequenceThread(Clients, Runs(lambda ports: ports.send(chunk)), receiver)
    threads.left = 0
    thread.start()
    thread.check(now=1.0)
    assert receiver.chunks == receiver.ends == []
    threads.left = 1
    thread.check(now=2.0)
    assert eventually(lambda: receiver.ends == [None])
    assert receiver.chunks == [chunk]
    threads.left = 1
    thread.check(now=3.0)
    assert threads.left == 1  # an ended sequence starts no thread
    assert receiver.ends == [None]


def test_an_interrupted_sequence_ends_even_if_no_thread_can_start(threads):
    receiver, reason = Receiver(), Cancelled()
    thread = SequenceThread(Clients, Runs(lambda ports: None), receiver)
    thread.interrupt(reason)
    threads.left = 0
    thread.start()  # no check follows, because the request is closed
    assert receiver.ends == [reason]


def test_a_forwarded_request_is_rejected_if_no_thread_can_start(threads, pb):
    entry = ForwardEntry()
    entry._settings = ForwarderSettings(stream_model="s", drafter=None, request_timeout=60.0)
    entry._calls = Calls()
    entry._watcher = type("Watcher", (), {"add": lambda self, watched: None})()
    senders = [pb.ResponseSender(), pb.ResponseSender()]
    threads.left = 0
    entry.execute([pb.Request(sender) for sender in senders])
    for sender in senders:
        [sent] = sender.sent
        assert "can't start another thread" in sent.response.error().message()
        assert sent.response.error().code() == pb.TritonError.UNAVAILABLE


def test_an_error_is_sent_even_if_no_thread_can_start(threads, pb):
    triton = pb.ResponseSender()
    threads.left = 0
    Sender(pb.Request(triton), decoupled=True).send_error("no", "INVALID_ARG")
    [sent] = triton.sent
    assert sent.response.error().message() == "no"


def test_a_permit_passes_to_the_next_request_if_no_thread_can_start(threads):
    failures, served, limiter = [], [], ConcurrencyLimiter(1, 100)
    first = limiter.acquire(lambda permit: None, 1)

    def unlucky(permit):
        def give_up(error):
            permit.release_unused()
            failures.append(error)

        run_in_background(lambda: None, give_up)

    for _ in range(2000):  # exceeds the recursion limit
        limiter.acquire(unlucky, 0)
    limiter.acquire(served.append, 1)
    threads.left = 0
    first.release()
    assert len(failures) == 2000
    assert len(served) == 1


def test_a_thread_that_cannot_start_releases_its_slot(threads):
    clients = type("Clients", (Clients,), {"ahead_threads": threading.BoundedSemaphore(1)})
    request = SimpleNamespace(sequence_key="s")
    threads.left = 0
    assert AheadThread.start_if_free(clients, request) is None
    threads.left = 1
    helper = AheadThread.start_if_free(clients, request)
    assert AheadThread.start_if_free(clients, request) is None
    ended = []
    helper.close(lambda: ended.append(1))
    assert ended == [1]
    assert eventually(lambda: clients.ahead_threads.acquire(blocking=False))


def test_drafts_are_not_paused_if_no_probe_thread_can_start(threads):
    health = DraftEngineHealth(object(), 1e6)  # the probe sleeps during the whole test
    threads.left = 0
    health.failed(EngineCallError("draft", "it fell over"))
    assert health.available
    threads.left = 1
    health.failed(EngineCallError("draft", "it fell over"))
    assert not health.available
