"""Clients that leave during a response can't make other streams hang.

Triton's thread for streams can hang if a client leaves a stream during a response. To make that
likely, the environment variable TRITONSERVER_DELAY_GRPC_RESPONSE (Triton's
src/grpc/infer_handler.h) slows down responses.
"""

import asyncio
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import entries
import pytest
import tritonclient.grpc as client
from benchmarks.soak.processes import is_at_rest
from live_triton import eventually
from metrics import total
from tritonclient.grpc.aio import InferenceServerClient as AsyncClient

from tandem.tools.errors import TandemError

from .conftest import emulated_zero, gateway_to, openai_client, serving

pytestmark = pytest.mark.heavy
STEP_MS = 20
RESPONSE_MS = 60  # longer than a step, so that Triton is sending a response most of the time
LEAVE_AFTER = [0.03, 0.04, 0.05, 0.06]  # seconds after a chunk, during the next response
LONG = {"max_tokens": 400, "end_id": -1, "drafter": "none", "stream": True}
TIMES = 3
MAX_TIMES = 5
UNTAKEN = "tandem_oldest_untaken_response_seconds"


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A server that sends responses slowly, and the URL of its gateway."""
    monkeypatch.setenv("TRITONSERVER_DELAY_GRPC_RESPONSE", str(RESPONSE_MS))
    planned = emulated_zero(tmp_path, step_ms={"target": STEP_MS})
    with (
        serving(planned, tmp_path) as server,
        gateway_to(server, planned.tokenizer.folder) as url,
    ):
        yield server, url


@contextmanager
def chunks(gateway, max_tokens):
    """Yield the chunks of an answer through the gateway. Closing early disconnects the client."""
    with openai_client(gateway) as api:
        yield api.completions.create(
            model="ensemble",
            prompt="x",
            max_tokens=max_tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )


async def cancel_a_stream(server, seconds):
    """Leave a stream a number of seconds after its first chunk.

    The client has already closed its side of the stream. Otherwise, Triton's thread first waits for
    the current response without a lock, and hangs only if the next response follows immediately.
    """

    async def request():
        yield {"model_name": "bls_stream", "inputs": entries.inputs("x", **LONG)}

    async with AsyncClient(server.grpc_url) as connection:
        results = connection.stream_infer(request())
        await anext(results)
        await asyncio.sleep(seconds)
        results.cancel()


def status(url):
    """Return the HTTP status of a page."""
    try:
        with urllib.request.urlopen(url) as page:
            return page.status
    except urllib.error.HTTPError as error:
        return error.code


def test_disconnected_gateway_clients_do_not_hang_other_streams(slow):
    server, gateway = slow
    for seconds in LEAVE_AFTER * TIMES:
        with chunks(gateway, max_tokens=400) as answer:
            next(answer)
            time.sleep(seconds)
    with chunks(gateway, max_tokens=2) as answer:
        assert "".join(chunk.choices[0].text for chunk in answer if chunk.choices)
    assert eventually(
        lambda: is_at_rest(server)
    )  # the engines compute nothing for disconnected clients


def test_a_server_whose_streams_hang_is_noticed(slow, monkeypatch):
    server, gateway = slow
    for seconds in LEAVE_AFTER * MAX_TIMES:
        asyncio.run(cancel_a_stream(server, seconds))
        if status(f"{gateway}/health") == 503 and eventually(lambda: total(server, UNTAKEN) >= 10):
            break  # a slow stream still receives every response
    else:
        pytest.fail("no stream hung")
    assert status(f"{gateway}/health") == 503
    with client.InferenceServerClient(server.grpc_url) as connection:
        assert connection.is_server_ready()  # Triton doesn't report the hang
    monkeypatch.setattr("tandem.tools.triton.server.HUNG_STREAM_TIMEOUT", 1.0)
    server.watch()
    with pytest.raises(TandemError, match="gRPC streams hang: Triton hasn't taken a response"):
        server.wait()
    server.log.path.unlink()
