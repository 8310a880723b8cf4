"""The engines stop after a client cancels or disconnects, and no resources leak."""

import gc
import http.client
import json
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import contextmanager

import entries
import pytest
import tritonclient.grpc as client
from benchmarks.soak.growth import threads_at_rest
from benchmarks.soak.processes import is_at_rest, sample
from crowd import Crowd, ask
from live_triton import eventually
from metrics import computed, computed_so_far, settle
from tritonclient.utils import InferenceServerException

from tandem.contract import entry as tensors

# In `make test-vllm`, contexts are shorter and engines are slower.
LONG = 900 if os.environ.get("TANDEM_TEST_ENGINES") == "vllm" else 3600
VALUES = {"max_tokens": LONG, "end_id": -1}
PROMPT = "def leave(early):\n"
# Allowed growth per model while 100 clients leave, about 42 kB per client. Allocators keep an arena
# per thread, so a process may grow a little.
GROWTH_MB = 4


def cancel_a_stream(server, **values):
    with entries.streaming(server, PROMPT, **VALUES, **values) as chunks:
        next(chunks)


def close_the_channel(server, **values):
    with entries.connected(server, PROMPT, **VALUES, **values) as (connection, chunks):
        next(chunks)
        connection._channel.close()  # connection.close() would first end the stream properly


def drop_the_http_connection(server, **values):
    connection = http.client.HTTPConnection(server.http_url)
    body = {"text_input": PROMPT, "stream": True, **VALUES, **values}
    connection.request("POST", "/v2/models/bls_stream/generate_stream", json.dumps(body))
    connection.getresponse().readline()
    connection.sock.close()
    connection.close()


def cancel_an_infer(server, **values):
    over = threading.Event()
    before = computed_so_far(server)
    with client.InferenceServerClient(server.grpc_url) as connection:
        sent = entries.inputs(PROMPT, **VALUES, **values)
        call = connection.async_infer("bls", sent, lambda result, error: over.set())
        assert eventually(lambda: computed_so_far(server) > before)
        call.cancel()
        assert over.wait(30)


def cancel_at_once(server, **values):
    over = threading.Event()
    with client.InferenceServerClient(server.grpc_url) as connection:
        sent = entries.inputs(PROMPT, **VALUES, **values)
        connection.async_infer("bls", sent, lambda result, error: over.set()).cancel()
        assert over.wait(30)


@contextmanager
def asked(server, request_id, **values):
    """Yield the chunks of an answer, and a function that sends a `stop` for it."""
    with entries.opened(server, request_id) as (send, chunks):
        send(*entries.inputs(PROMPT, stream=True, **VALUES | values))
        yield chunks, lambda: send(entries.tensor(tensors.STOP, True), ends=False)


def send_a_stop(server, **values):
    with asked(server, str(uuid.uuid4()), **values) as (chunks, stop):
        next(chunks)
        stop()
        with pytest.raises(InferenceServerException, match="cancelled"):
            list(chunks)


LEAVE = [
    send_a_stop,
    cancel_a_stream,
    close_the_channel,
    drop_the_http_connection,
    cancel_an_infer,
    cancel_at_once,
]


AHEAD = {"drafter": "draft_model", "draft_ahead": "true"}


@pytest.mark.engines
@pytest.mark.parametrize("leave", LEAVE)
def test_engines_stop_when_the_client_leaves(server, leave: Callable):
    before = computed(server)
    # The target is late, so the answer can't end before the client leaves.
    with server.faults.inject("target", "late"):
        leave(server, **AHEAD)
    settle(server)
    # A complete answer has more than LONG tokens.
    assert computed(server) - before < LONG / 2


def test_a_stop_ends_all_requests_with_its_id(server):
    request_id = str(uuid.uuid4())
    with (
        server.faults.inject("target", "late"),
        asked(server, request_id) as (chunks, _),
        asked(server, request_id) as (others, stop),
    ):
        next(chunks)
        next(others)
        stop()
        for left in (chunks, others):
            with pytest.raises(InferenceServerException, match="cancelled"):
                list(left)


def test_a_stop_with_a_guessable_id_does_not_end_requests(server):
    with asked(server, "1", max_tokens=100) as (chunks, stop):
        next(chunks)
        stop()
        assert list(chunks)[-1].finish_reason == "length"


def test_a_request_ends_with_a_one_line_error_at_its_timeout(server):
    line = "the request exceeded its timeout of 0.3 s"
    answer = ask(server, PROMPT, max_tokens=LONG, timeout=300_000)
    assert answer.error == f"deadline_exceeded: {line}"
    with (
        client.InferenceServerClient(server.grpc_url) as connection,
        pytest.raises(InferenceServerException, match=line),
    ):
        connection.infer("bls", entries.inputs(PROMPT, **VALUES), timeout=300_000)
    for model in ("bls", "bls_stream"):
        body = {"text_input": PROMPT, **VALUES, "timeout": 300_000}
        connection = http.client.HTTPConnection(server.http_url)
        connection.request("POST", f"/v2/models/{model}/generate", json.dumps(body))
        assert json.load(connection.getresponse()) == {"error": f"deadline_exceeded: {line}"}
        connection.close()
    assert eventually(lambda: is_at_rest(server))


@pytest.mark.heavy
def test_hundreds_of_disconnects_leak_no_memory_or_threads(server):
    leave_often(server, 200)
    # An allocator may keep a few more megabytes once, but a leak grows in every attempt.
    for _ in range(3):
        before = sample(server)
        leave_often(server, 100)
        # Iterators and threads remain for about a second after their last use.
        if eventually(lambda before=before: grown(before, sample(server)) == [], 20):
            return
    pytest.fail(str(grown(before, sample(server))))


def leave_often(server, times):
    ways = [LEAVE[number % len(LEAVE)] for number in range(times)]
    with Crowd(server, 8) as crowd:
        for future in [crowd.run(way, server) for way in ways]:
            future.result(timeout=120)
    gc.collect()
    settle(server)


def grown(before, after):
    """Return what has grown more than allowed."""
    memory = [
        f"{model}: {after.memory_mb[model]:.0f} MB after {mb:.0f} MB"
        for model, mb in before.memory_mb.items()
        if after.memory_mb[model] > mb + GROWTH_MB
    ]
    threads = [growth.name for growth in threads_at_rest(before, after) if not growth.flat]
    return memory + threads + ["shared memory"] * (after.shared_mb > before.shared_mb + GROWTH_MB)
