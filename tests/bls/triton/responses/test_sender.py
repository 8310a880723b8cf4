"""Large responses fail cleanly, final responses always arrive, and calls never block."""

import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from live_triton import eventually

from tandem.bls.errors import AnswerNotSent
from tandem.bls.triton import client as module
from tandem.bls.triton.client import LARGE_BYTES, Deliveries, Sender

FINAL = 1


@pytest.fixture
def answer(pb):
    def of_bytes(size):
        return pb.InferenceResponse([pb.Tensor("Y", np.zeros(size, np.uint8))])

    return of_bytes


@pytest.fixture
def made(pb):
    """made(...) returns Triton's sender and the `Sender` that wraps it."""

    def make(*, decoupled=True, with_error_codes=False, deliveries=None, **given):
        triton = pb.ResponseSender(**given)
        return triton, Sender(
            pb.Request(triton),
            decoupled=decoupled,
            with_error_codes=with_error_codes,
            deliveries=deliveries,
        )

    return make


def large(response):
    return response is not None and any(t.as_numpy().nbytes for t in response.output_tensors())


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_small_answer_and_the_final_flag_share_one_response(made, answer, decoupled):
    triton, sender = made(decoupled=decoupled)
    sender.send(answer(8), final=True)
    assert [sent.flags for sent in triton.sent] == [FINAL]
    assert sender.closed


def test_a_large_answer_is_sent_before_a_separate_final_response(made, answer):
    triton, sender = made()
    sender.send(answer(LARGE_BYTES + 1), final=True)
    [data, end] = triton.sent
    assert (data.flags, end.flags, end.response) == (0, FINAL, None)
    assert sender.closed


@pytest.mark.parametrize("size", [LARGE_BYTES, LARGE_BYTES + 1])
@pytest.mark.parametrize("decoupled", [True, False])
def test_the_size_of_an_answer_includes_its_strings(made, pb, monkeypatch, size, decoupled):
    """Statistics of 10,000 rounds, for example, take megabytes of text."""
    asked = []
    monkeypatch.setattr(module, "_has_memory_for_end", lambda size: asked.append(size) or True)
    triton, sender = made(decoupled=decoupled)
    texts = np.array([[b"a" * (size - 4), "\u00e9" * 2]], object)
    sender.send(pb.InferenceResponse([pb.Tensor("Y", texts)]), final=True)
    ahead = decoupled and size > LARGE_BYTES
    assert [sent.flags for sent in triton.sent] == ([0, FINAL] if ahead else [FINAL])
    assert asked == [0 if ahead else size]


@pytest.mark.parametrize("final", [True, False])
def test_an_answer_that_does_not_fit_fails_with_one_line(made, answer, final):
    triton, sender = made(fits=lambda response: not large(response))
    with pytest.raises(AnswerNotSent, match="doesn't fit into the server's shared memory"):
        sender.send(answer(LARGE_BYTES + 1), final=final)
    assert not sender.closed
    assert not sender.is_cancelled()
    sender.send_error("it does not fit")
    assert eventually(lambda: sender.closed)
    [end] = triton.sent
    assert (end.line, end.flags) == ("it does not fit", FINAL)


def test_the_final_response_waits_for_free_shared_memory(made, answer, pb, monkeypatch):
    """Triton closes its sender before checking whether the response fits."""
    monkeypatch.setattr(module, "_has_memory_for_end", lambda _: False)
    monkeypatch.setattr(module, "RETRY_INTERVAL", 0.01)
    triton, sender = made(decoupled=False)
    with pytest.raises(AnswerNotSent):
        sender.send(answer(8), final=True)
    sender.send_error("no memory")
    assert not sender.closed
    assert triton.sent == []
    assert eventually(lambda: pb.Logger.lines)
    monkeypatch.setattr(module, "_has_memory_for_end", lambda _: True)
    assert eventually(lambda: sender.closed)
    assert [sent.line for sent in triton.sent] == ["no memory"]
    [line] = pb.Logger.lines
    assert line.endswith("the end of a request is delayed: the server's shared memory is full")


def test_a_response_is_sent_if_triton_or_dev_shm_has_memory(monkeypatch):
    class Pool:
        free = 0

        def free_memory(self):
            return self.free

    native = SimpleNamespace(shared_memory=Pool())  # as in tests/server/test_lifecycle.py
    monkeypatch.setitem(sys.modules, "c_python_backend_utils", native)
    monkeypatch.setattr(module, "GROWTH_BYTES", 0)
    assert module._has_memory_for_end(0)
    assert not module._has_memory_for_end(2**62)
    monkeypatch.setattr(module, "GROWTH_BYTES", 2**62)
    assert not module._has_memory_for_end(0)
    Pool.free = module.SPARE_BYTES
    assert module._has_memory_for_end(0)
    assert not module._has_memory_for_end(1)
    Pool.free += 1
    assert module._has_memory_for_end(1)
    native.shared_memory = object()  # a Triton version that doesn't report free memory
    assert not module._has_memory_for_end(0)
    monkeypatch.setattr(module, "GROWTH_BYTES", 0)
    assert module._has_memory_for_end(0)


def test_a_failed_final_response_is_logged_and_not_repeated(made, answer, pb):
    _, sender = made(fits=lambda response: False)
    sender.send(answer(8), final=True)
    assert sender.closed
    assert any("failed to send the end of a request" in line for line in pb.Logger.lines)


def test_errors_and_cancellation_checks_do_not_wait_for_a_blocked_send(made, answer):
    go_on = threading.Event()
    triton, sender = made(hold=go_on.wait)
    sending = threading.Thread(target=lambda: sender.send(answer(8), final=False))
    sending.start()
    assert eventually(sender._lock.locked)
    assert not sender.is_cancelled()  # a blocking call would hang
    sender.send_error("time is up")
    assert triton.sent == []
    go_on.set()
    sending.join()
    assert eventually(lambda: sender.closed)
    assert [sent.flags for sent in triton.sent] == [0, FINAL]


def test_only_the_first_error_is_sent(made):
    go_on = threading.Event()
    triton, sender = made(hold=go_on.wait)
    sender.send_error("first")
    sender.send_error("second")
    sender.close()
    go_on.set()
    assert eventually(lambda: sender.closed)
    assert [sent.line for sent in triton.sent] == ["first"]


@pytest.mark.parametrize(
    ("with_error_codes", "line"), [(False, "try later"), (True, "UNAVAILABLE: try later")]
)
def test_an_error_is_sent_with_its_code(made, pb, with_error_codes, line):
    triton, sender = made(with_error_codes=with_error_codes)
    sender.send_error("try later", "UNAVAILABLE")
    assert eventually(lambda: sender.closed)
    [sent] = triton.sent
    assert (sent.line, sent.response.error().code()) == (line, pb.TritonError.UNAVAILABLE)


def test_nothing_is_sent_after_the_final_response(made, answer):
    triton, sender = made()
    triton.cancelled = True
    assert sender.is_cancelled()
    sender.send(answer(8), final=True)
    assert not sender.is_cancelled()
    sender.send(answer(8), final=True)
    sender.send_error("too late")
    assert len(triton.sent) == 1


@pytest.mark.parametrize("final", [True, False])
def test_a_blocked_send_is_reported(made, answer, final, monkeypatch):
    go_on, now, deliveries = threading.Event(), 100.0, Deliveries()
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("tandem.bls.triton.client.time", clock)
    assert deliveries.oldest_seconds == 0
    triton, sender = made(hold=go_on.wait, deliveries=deliveries)
    _, other = made(deliveries=deliveries)
    sending = threading.Thread(target=lambda: sender.send(answer(8), final=final))
    sending.start()
    assert eventually(lambda: deliveries._started_at)
    now = 102.9
    other.send(answer(8), final=False)
    assert deliveries.oldest_seconds == 2
    go_on.set()
    sending.join()
    assert len(triton.sent) == 1
    assert deliveries.oldest_seconds == 0
