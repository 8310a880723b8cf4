"""What becomes of the requests under way when the gateway is stopped."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading

import pytest
from live_triton import eventually
from scripted_triton import FOREVER, HELLO, ScriptedTriton

from tandem.gateway import server
from tandem.gateway.app import create_app
from tandem.gateway.server import listen, serving

SECONDS = 30


@contextlib.contextmanager
def request(port, **body):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as one:
        headers = {"content-type": "application/json"}
        one.request("POST", "/v1/completions", json.dumps({"prompt": "hi"} | body), headers)
        yield one


def told(body):
    """The objects of a stream, which ends as every stream does."""
    *events, last, empty = body.decode().split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.fixture
def hasty(monkeypatch):
    """A gateway that waits for hardly anything."""
    monkeypatch.setattr(server, "SECONDS_TO_STOP", 0.1)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(("stream", "chunks"), [(True, 0), (True, 1), (False, 0), (False, 1)])
def test_an_answer_that_takes_too_long_is_not_taken_for_complete(
    app, triton, capfd, *, stream, chunks, n
):
    triton.script = lambda _: [HELLO[0]] * chunks + [FOREVER]
    with listen("127.0.0.1", 0) as bound, contextlib.ExitStack() as gateway:
        gateway.enter_context(serving(app(), bound))
        with request(bound.getsockname()[1], stream=stream, n=n) as asked:
            assert eventually(lambda: triton.running == n and triton.sent == n * chunks)
            response = asked.getresponse() if stream and chunks else None
            gateway.close()
            response = response or asked.getresponse()
            body = response.read()
    if stream and chunks:
        *_, last = told(body)
    else:
        assert response.status == 503
        last = json.loads(body)
    assert last["error"]["code"] == "gateway_stopped"
    assert triton.left == n
    assert "Traceback" not in capfd.readouterr().err


class Paused(ScriptedTriton):
    """Ends no answer before it is allowed to."""

    def __init__(self):
        super().__init__()
        self.may_end = False

    async def generate(self, model, inputs, extras=()):
        yield HELLO[0]
        self.sent += 1
        while not self.may_end:
            await asyncio.sleep(0.01)
        yield HELLO[1]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_may_end_while_the_gateway_is_being_stopped(settings, monkeypatch, stream):
    monkeypatch.setattr(server, "SECONDS_TO_STOP", SECONDS)
    triton = Paused()
    app = create_app(settings(), connect=lambda _: triton)
    with listen("127.0.0.1", 0) as bound, contextlib.ExitStack() as gateway:
        gateway.enter_context(serving(app, bound))
        port = bound.getsockname()[1]
        with request(port, stream=stream) as asked:
            assert eventually(lambda: triton.sent == 1)
            stopping = threading.Thread(target=gateway.close)
            stopping.start()
            assert eventually(lambda: not is_taken(port))
            triton.may_end = True
            body = asked.getresponse().read()
        stopping.join()
    text = told(body) if stream else [json.loads(body)]
    assert "".join(part["choices"][0]["text"] for part in text) == "Hello"


def is_taken(port):
    """Whether somebody listens there."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
