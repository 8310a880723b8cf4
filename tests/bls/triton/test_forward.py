"""A forwarded request whose client has gone, while `bls_stream` hangs."""

import threading
import time

import pytest
from live_triton import eventually

from tandem.bls.settings import ForwarderSettings
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.forward import SECONDS_BETWEEN_STOPS, _Forwarded
from tandem.bls.triton.pending_call import AbandonedCalls


class Request:
    def __init__(self, sender):
        self.get_response_sender = lambda: sender


@pytest.fixture
def cancelled(pb):
    """A forwarded request that its client has left."""
    sender = pb.ResponseSender()
    sender.cancelled = True
    settings = ForwarderSettings(stream_model="bls_stream", drafter=None, request_timeout=60.0)
    return _Forwarded(Request(sender), settings, Calls(), AbandonedCalls())


def test_one_stop_is_under_way_at_a_time(cancelled, pb):
    asked, go_on = [], threading.Event()

    def answer(request):
        asked.append(request)
        assert go_on.wait(30)
        return pb.InferenceResponse(error=pb.TritonError("the call has ended"))

    pb.InferenceRequest.answer = answer
    now = time.monotonic()
    threads = threading.active_count()
    for look in range(100):
        cancelled.check(now + look * SECONDS_BETWEEN_STOPS)
    assert eventually(lambda: len(asked) == 1)
    assert threading.active_count() <= threads + 1
    go_on.set()
    assert eventually(lambda: threading.active_count() == threads)
    cancelled.check(now + 100 * SECONDS_BETWEEN_STOPS)  # it may have come too early
    assert eventually(lambda: len(asked) == 2)
