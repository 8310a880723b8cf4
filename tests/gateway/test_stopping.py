"""The gateway handles running requests when it stops."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from live_triton import eventually
from scripted_triton import FOREVER, HELLO, ScriptedTriton, joined

from tandem.gateway import server
from tandem.gateway.app import create_app
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.middleware import RequestMiddleware
from tandem.gateway.server import listen, serving

from .conftest import request

SECONDS = 30
SUPPORT = Path(__file__).parents[1] / "support"


def events_of(body):
    """Return the objects of a stream, and check that it ends normally."""
    *events, last, empty = body.decode().split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.fixture
def hasty(monkeypatch):
    """Stop the gateway early. On a busy machine, ending the requests may take longer."""
    monkeypatch.setattr(server, "SECONDS_TO_STOP", 0.1)
    make = server._server

    def patient(*given):
        made = make(*given)
        made.config.timeout_graceful_shutdown = SECONDS
        return made

    monkeypatch.setattr(server, "_server", patient)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("stream", "chunks"), [(True, 0), (True, 1), (False, 0), (False, 1)])
def test_shutdown_ends_an_unfinished_answer_with_an_error(
    app, triton, capfd, monkeypatch, *, stream, chunks
):
    monkeypatch.setattr(server, "SECONDS_TO_END", SECONDS)
    n = 3
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
        *_, last = events_of(body)
    else:
        assert response.status == 503
        last = json.loads(body)
    assert last["error"]["code"] == "gateway_stopped"
    assert triton.running == 0
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("hasty")
def test_shutdown_ends_an_incomplete_request_with_an_error(app, capfd):
    head = b"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: 9\r\n\r\n{"
    with listen("127.0.0.1", 0) as bound:
        with (
            serving(app(), bound),
            socket.create_connection(bound.getsockname(), timeout=SECONDS) as asking,
        ):
            asking.sendall(head)
            with request(bound.getsockname()[1]) as later:
                assert later.getresponse().status == 200  # the head has been read, too
            stopped = asking.dup()
        with stopped, contextlib.closing(stopped.makefile("rb")) as response:
            assert b" 503 " in response.readline()
            assert b"gateway_stopped" in response.read()
    assert capfd.readouterr().err == ""


@pytest.mark.anyio
@pytest.mark.parametrize("stopping", [True, False])
async def test_shutdown_during_a_slow_response_logs_one_line(caplog, stopping):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    async def send(message):
        assert message["status"] == 200

    made = RequestMiddleware(
        app,
        metrics=GatewayMetrics(),
        endpoints=frozenset(),
        max_body_bytes=9,
        keys=(),
        operator_keys=(),
        allowed_origins=(),
        allowed_hosts=None,
        is_stopping=lambda: stopping,
    )
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    with contextlib.nullcontext() if stopping else pytest.raises(asyncio.CancelledError):
        await made(scope, None, send)
    assert caplog.messages == ["stopped before a client had read its response"] * stopping


def test_a_request_during_shutdown_is_rejected(app, triton, capfd):
    made = app()
    with listen("127.0.0.1", 0) as bound, serving(made, bound):
        with request(bound.getsockname()[1]) as asked:
            assert asked.getresponse().status == 200
        made.state.serving.triton.stop()
        with request(bound.getsockname()[1]) as asked:
            response = asked.getresponse()
            assert json.loads(response.read())["error"]["code"] == "gateway_stopped"
    assert len(triton.asked) == 1
    assert capfd.readouterr().err == ""


GATEWAY = """
import signal
import sys
from contextlib import suppress
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from scripted_triton import FOREVER, HELLO, ScriptedTriton
from tandem.gateway import server
from tandem.gateway.app import create_app
from tandem.gateway.settings import GatewaySettings

triton = ScriptedTriton(lambda _: [HELLO[0], FOREVER])
app = create_app(GatewaySettings("", Path(sys.argv[2])), connect=lambda _: triton)
server.SECONDS_TO_STOP = float(sys.argv[3])
server.SECONDS_TO_END = 30  # enough on a busy machine
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
with server.listen("127.0.0.1", 0) as bound:
    port = bound.getsockname()[1]
    with suppress(KeyboardInterrupt):  # raised again after the end
        server.serve(app, bound, on_ready=lambda: print(port, flush=True))
"""


@contextlib.contextmanager
def gateway_process(tokenizer_folder, seconds_to_stop):
    """Run a gateway in a separate process, and yield the process and its port."""
    arguments = [*map(str, (SUPPORT, tokenizer_folder, seconds_to_stop))]
    with subprocess.Popen(
        [sys.executable, "-c", GATEWAY, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as gateway:
        yield gateway, int(gateway.stdout.readline())
        gateway.wait(SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_streams_with_an_error(tokenizer_folder, number):
    """By default, sse-starlette would end the streams within a second, without an event."""
    with (
        gateway_process(tokenizer_folder, seconds_to_stop=2) as (gateway, port),
        request(port, stream=True) as asked,
    ):
        response = asked.getresponse()
        first = response.readline()
        gateway.send_signal(number)
        *_, last = events_of(first + response.read())
        assert gateway.communicate(timeout=SECONDS)[1] == ""
    assert last["error"]["code"] == "gateway_stopped"


def test_a_second_interrupt_stops_immediately(tokenizer_folder):
    with (
        gateway_process(tokenizer_folder, seconds_to_stop=10 * SECONDS) as (gateway, port),
        request(port, stream=True) as asked,
    ):
        response = asked.getresponse()
        first = response.readline()
        gateway.send_signal(signal.SIGINT)
        assert eventually(lambda: not is_taken(port))
        gateway.send_signal(signal.SIGINT)
        *_, last = events_of(first + response.read())
    assert last["error"]["code"] == "gateway_stopped"


class Paused(ScriptedTriton):
    """A fake Triton that ends answers only after ``may_end`` is set."""

    def __init__(self):
        super().__init__()
        self.may_end = False

    async def generate(self, model, inputs, extras=()):
        if inputs["stream"]:
            yield HELLO[0]
        self.sent += 1
        while not self.may_end:
            await asyncio.sleep(0.01)
        yield HELLO[1] if inputs["stream"] else joined(HELLO)


@pytest.mark.parametrize("stream", [True, False])
def test_a_running_answer_can_finish_during_shutdown(settings, monkeypatch, stream):
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
    text = events_of(body) if stream else [json.loads(body)]
    assert "".join(part["choices"][0]["text"] for part in text) == "Hello"


def is_taken(port):
    """Return whether a process listens on the port."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_a_signal_right_after_the_gateway_is_ready_stops_it(tokenizer_folder):
    with gateway_process(tokenizer_folder, 5) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, process.stderr.read()
