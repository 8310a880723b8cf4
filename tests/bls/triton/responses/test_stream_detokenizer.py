"""A stream's text is added on a thread of its own, which ends with the request."""

import threading

from scripted import SETTINGS, ids

from tandem.bls.errors import Cancelled
from tandem.bls.request import Request
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.responses.stream_detokenizer import StreamDetokenizer


def test_an_interruption_ends_the_wait_for_a_chunk(pb):
    ended, emitted, failures = threading.Event(), [], []

    class Observed(StreamDetokenizer):
        def on_end(self, error):
            super().on_end(error)
            ended.set()

    request = Request(prompt_ids=ids(1, 2, 3), max_tokens=8)
    detokenizer = Observed(EngineClients(SETTINGS), request, emitted.append, failures.append)
    detokenizer.start()
    assert detokenizer.running
    detokenizer.interrupt(Cancelled())
    assert ended.wait(30)
    assert not detokenizer.running
    assert emitted == []
    assert pb.Logger.lines == []
