"""Forwarded requests handle clients that leave and calls that fail."""

import itertools
import threading
import time

import numpy as np
import pytest
from live_triton import eventually
from model_configs import model_config, start_arguments
from receivers import Panic

from tandem.bls.settings import ForwarderSettings
from tandem.bls.triton import forward
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.client import LARGE_BYTES
from tandem.bls.triton.forward import STOP_INTERVAL, ForwardEntry, _Forwarded
from tandem.contract import entry
from tandem.contract.errors import prefix_code
from tandem.contract.model_parameters import encode

TEXT = np.array([[b"one"], [b"two"]], object)
FLAGS = np.array([True, False])  # a scalar per prompt, as Triton passes it to the model


@pytest.fixture
def cancelled(pb):
    """A forwarded request that its client has cancelled."""
    sender = pb.ResponseSender()
    sender.cancelled = True
    settings = ForwarderSettings(stream_model="bls_stream", drafter=None, request_timeout=60.0)
    return _Forwarded(pb.Request(sender), settings, Calls())


def test_only_one_stop_is_sent_at_a_time(cancelled, pb, monkeypatch):
    begun, asked = [], []
    monkeypatch.setattr(forward, "run_in_background", lambda work, rejected: begun.append(work))
    now = itertools.count(time.monotonic(), STOP_INTERVAL)

    def look_often():
        for _ in range(100):
            cancelled.check(next(now))

    def answer(request):
        asked.append(request)
        look_often()
        return pb.InferenceResponse(error=pb.TritonError("the call has ended"))

    pb.InferenceRequest.answer = answer
    look_often()
    [stop] = begun
    begun.clear()
    stop()
    assert len(asked) == 1
    assert begun == []
    look_often()  # the first stop may have arrived too early
    [stop] = begun
    stop()
    assert len(asked) == 2


def test_an_unexpected_error_while_forwarding_reaches_the_client(pb, monkeypatch):
    def call(_):
        raise Panic("boom")

    monkeypatch.setattr(_Forwarded, "_call", call)
    sender = pb.ResponseSender()
    settings = ForwarderSettings(stream_model="bls_stream", drafter=None, request_timeout=60.0)
    _Forwarded(pb.Request(sender), settings, Calls()).run()
    assert eventually(lambda: sender.sent)  # another thread sends the error
    [sent] = sender.sent
    line = "internal error while forwarding the request; see the server's log"
    assert sent.response.error().message() == line
    assert any("boom" in logged for logged in pb.Logger.lines)


@pytest.fixture
def forward_one(pb):
    """Return a function that forwards a request, and returns the call and the client's response.

    answer: the response of `bls_stream`, or a function of the call that makes it.
    """
    calls = Calls()

    def send(arrays, *, answer=None, wanted=(), drafter=None):
        asked, sender = [], pb.ResponseSender(decoupled=False)

        def reply(request):
            asked.append(request)
            return answer(request) if callable(answer) else answer

        pb.InferenceRequest.answer = reply
        settings = ForwarderSettings(
            stream_model="bls_stream", drafter=drafter, request_timeout=60.0, max_text_bytes=9
        )
        forwarded = _Forwarded(pb.Request(sender, arrays, wanted), settings, calls)
        forwarded.run()
        assert eventually(lambda: forwarded.closed)
        [sent] = sender.sent
        return asked, sent.response

    send.calls = calls
    return send


def test_a_request_and_its_answer_are_forwarded_unchanged(forward_one, pb):
    answer = pb.response_of({entry.TEXT_OUTPUT: TEXT})
    sent = {entry.TEXT_INPUT: TEXT, entry.RETURN_LOG_PROBS: FLAGS}
    [call], response = forward_one(sent, answer=answer, wanted=[entry.TEXT_OUTPUT])
    assert call.model_name == "bls_stream"
    assert entry.is_forwarded(call.given["request_id"])
    assert call.given["requested_output_names"] == [entry.TEXT_OUTPUT]
    assert {name: array.shape for name, array in call.arrays.items()} == {
        entry.TEXT_INPUT: (2, 1),
        entry.RETURN_LOG_PROBS: (2, 1),
    }
    assert response.arrays[entry.TEXT_OUTPUT] is TEXT


def test_an_answer_may_lack_the_outputs_that_the_client_asks_for(forward_one, pb):
    _, response = forward_one({entry.TEXT_INPUT: TEXT}, answer=pb.InferenceResponse())
    assert not response.has_error()


def test_a_request_without_a_drafter_gets_the_entrys_own(forward_one, pb):
    def drafters(arrays):
        [call], _ = forward_one(arrays, answer=pb.InferenceResponse(), drafter="none")
        return call.arrays[entry.DRAFTER].tolist()

    assert drafters({entry.TEXT_INPUT: TEXT}) == [[b"none"], [b"none"]]
    own = np.array([[b"hybrid"]], object)
    assert drafters({entry.TEXT_INPUT: TEXT[:1], entry.DRAFTER: own}) == own.tolist()


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        ({entry.STOP: np.array([True])}, "input 'stop' isn't supported by this model; send it to "),
        ({entry.STREAM: np.array([False, True])}, "to stream, send the request to 'bls_stream'"),
        ({entry.TEXT_INPUT: TEXT * 4}, "has 12 bytes; the limit is 9"),
    ],
)
def test_what_the_entry_cannot_serve_is_rejected_without_a_call(forward_one, pb, arrays, line):
    asked, response = forward_one({entry.TEXT_INPUT: TEXT} | arrays)
    assert line in response.error().message()
    assert response.error().code() == pb.TritonError.INVALID_ARG
    assert asked == []


def test_an_error_keeps_its_line_and_its_code(forward_one, pb):
    error = pb.TritonError(prefix_code("UNAVAILABLE", "the server is full"))
    _, response = forward_one({entry.TEXT_INPUT: TEXT}, answer=pb.InferenceResponse(error=error))
    assert response.error().message() == "the server is full"
    assert response.error().code() == pb.TritonError.UNAVAILABLE


def test_requests_are_rejected_while_earlier_ones_hang(forward_one, pb):
    forward_one.calls.count_abandoned("bls_stream", 1000)
    asked, response = forward_one({entry.TEXT_INPUT: TEXT})
    assert response.error().code() == pb.TritonError.UNAVAILABLE
    assert asked == []


def test_a_call_that_hangs_is_given_up_after_the_requests_own_timeout(pb):
    sender = pb.ResponseSender(decoupled=False)
    settings = ForwarderSettings(stream_model="bls_stream", request_timeout=60.0)
    calls = Calls()
    forwarded = _Forwarded(pb.Request(sender, {entry.TEXT_INPUT: TEXT}), settings, calls)

    def hang(_):
        now = time.monotonic()
        forwarded.check(now + 60)  # `bls_stream` ends the request
        assert not calls.abandoned
        forwarded.check(now + 100)
        assert eventually(lambda: forwarded.closed)
        return pb.InferenceResponse()

    pb.InferenceRequest.answer = hang
    forwarded.run()
    [sent] = sender.sent
    assert "no response within" in sent.line


def test_a_request_is_stopped_only_if_its_client_has_left(cancelled, pb, monkeypatch):
    begun = []
    monkeypatch.setattr(forward, "run_in_background", lambda work, rejected: begun.append(work))
    cancelled._sender._sender.cancelled = False
    cancelled.check(time.monotonic())
    assert begun == []
    cancelled._sender._sender.cancelled = True
    cancelled.check(time.monotonic())
    [stop] = begun
    asked = []
    pb.InferenceRequest.answer = lambda call: asked.append(call) or pb.InferenceResponse()
    stop()
    [call] = asked
    assert (call.model_name, call.given["request_id"]) == ("bls_stream", cancelled._id)
    assert call.arrays[entry.STOP].all()


def test_a_stop_that_no_thread_is_free_for_is_sent_later(cancelled, monkeypatch):
    tries = []

    def no_thread(work, rejected):
        tries.append(work)
        rejected(None)

    monkeypatch.setattr(forward, "run_in_background", no_thread)
    now = time.monotonic()
    for later in (0, STOP_INTERVAL / 2, STOP_INTERVAL):
        cancelled.check(now + later)
    assert len(tries) == 2


def test_the_entry_forwards_requests_and_stops_those_whose_clients_leave(pb, tmp_path):
    settings = ForwarderSettings(stream_model="bls_stream", request_timeout=60.0)
    config = model_config(encode(settings), name="bls", instance_group=[{"count": 1}])
    entry_model = ForwardEntry()
    entry_model.initialize(start_arguments(config, tmp_path))
    left = pb.ResponseSender(decoupled=False)
    left.cancelled = True
    stopped = threading.Event()

    def answer(call):
        if entry.STOP in call.arrays:
            stopped.set()
            return pb.InferenceResponse()
        assert stopped.wait(30)
        return pb.response_of({entry.TEXT_OUTPUT: np.zeros(LARGE_BYTES + 1, np.uint8)})

    pb.InferenceRequest.answer = answer
    entry_model.execute([pb.Request(left, {entry.TEXT_INPUT: TEXT})])
    assert eventually(lambda: left.sent)
    assert (
        entry.TEXT_OUTPUT in left.sent[0].response.arrays
    )  # in one response, although it is large
    entry_model.finalize()
