"""Forwarded requests handle clients that leave and calls that fail."""

import itertools
import time

import pytest
from live_triton import eventually
from receivers import Panic

from tandem.bls.settings import ForwarderSettings
from tandem.bls.triton import forward
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.forward import STOP_INTERVAL, _Forwarded


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
