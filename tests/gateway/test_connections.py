"""The gateway handles clients that disconnect or read slowly, over real connections."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import httpx2
import openai
import pytest
from live_triton import eventually
from scripted_triton import FOREVER, HELLO

from tandem.gateway import server
from tandem.gateway.server import Connection, listen, serving
from tandem.gateway.triton.backend import ResponseChunk

from .conftest import request

LONG = 20_000  # chunks of a long answer
BYTES = 200  # minimum size of a chunk


@pytest.fixture
def port(app):
    """The port of a running gateway."""
    with listen("127.0.0.1", 0) as bound, serving(app(), bound):
        yield bound.getsockname()[1]


@pytest.mark.parametrize("chunks", [0, 1])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_cancels_its_request(port, triton, stream, chunks):
    n = 3
    triton.script = lambda _: [HELLO[0]] * chunks + [FOREVER]
    with request(port, stream=stream, n=n) as connection:
        assert eventually(lambda: triton.running == n and triton.sent == n * chunks)
        if stream and chunks:
            assert connection.getresponse().readline().startswith(b"data: ")
    assert eventually(lambda: triton.left == n)
    assert triton.running == 0


def test_chunks_are_sent_without_waiting_for_acknowledgments(port, monkeypatch):
    """By default, the kernel delays a chunk until the client acknowledges the previous chunk."""
    at_once = []
    made = Connection.connection_made

    def connection_made(self, transport):
        made(self, transport)
        connected = transport.get_extra_info("socket")
        at_once.append(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    with request(port, stream=True) as connection:
        connection.getresponse().read()
    assert at_once == [1]


def test_many_disconnects_leave_no_running_requests(port, triton):
    triton.script = lambda _: [HELLO[0], FOREVER]
    with contextlib.ExitStack() as clients:
        for _ in range(60):
            clients.enter_context(request(port, stream=True))
        assert eventually(lambda: triton.running == 60)
    assert eventually(lambda: triton.left == 60)
    triton.script = lambda _: HELLO
    with request(port) as connection:
        assert connection.getresponse().status == 200


def test_a_client_that_stops_reading_is_disconnected(port, triton, monkeypatch, caplog):
    monkeypatch.setattr("tandem.gateway.answers.generation.SECONDS_TO_SEND", 0.2)
    chunk = ResponseChunk("x" * BYTES, [70], 1, 0, 0)
    triton.script = lambda _: [chunk] * LONG + [HELLO[-1]]
    with request(port, stream=True) as idle:
        assert idle.sock.recv(1)
        assert eventually(lambda: triton.left == 1)
        assert eventually(lambda: "stopped reading" in caplog.text)
    assert "Traceback" not in caplog.text


def test_a_slow_client_does_not_delay_others(port, triton):
    chunk = ResponseChunk("x" * BYTES, [70], 1, 0, 0)
    triton.script = lambda _: [chunk] * LONG + [HELLO[-1]]
    with request(port, stream=True) as slow:
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert slow.sock.recv(1)
        before = -1
        while before != triton.sent:  # until the gateway stops sending
            before = triton.sent
            time.sleep(0.2)
        # The buffers of the kernel and the gateway can't hold the whole answer.
        assert triton.sent < LONG
        triton.script = lambda _: HELLO
        with request(port, stream=True) as other:
            assert other.getresponse().read().endswith(b"data: [DONE]\n\n")
    assert eventually(lambda: triton.running == 0)


def test_only_clients_with_incomplete_requests_are_disconnected(port, triton, monkeypatch):
    is_sent = threading.Event()  # a client that is still sending must not be disconnected
    check = Connection._check

    def check_if_sent(self):
        if is_sent.is_set():
            check(self)
        else:
            self._check_later()

    monkeypatch.setattr(Connection, "_check", check_if_sent)
    monkeypatch.setattr("tandem.gateway.server.SECONDS_TO_ASK", 0.1)
    triton.script = lambda _: [HELLO[0], FOREVER]
    head = b"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\n"
    with request(port, stream=True), contextlib.ExitStack() as others:
        assert eventually(lambda: triton.sent == 1)
        for sent in (b"", head, head + b"content-length: 9\r\n\r\n{"):
            is_sent.clear()
            other = others.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            other.sendall(sent)
            is_sent.set()
            assert other.recv(1) == b""
        assert triton.running == 1


@pytest.mark.parametrize(
    "endless", [b"a: b\r\n" * 10_000, b"x" * 60_000], ids=["headers", "a header"]
)
def test_headers_without_end_are_rejected(port, endless):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"GET /version HTTP/1.1\r\nhost: gateway\r\nname: ")
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            client.sendall(endless * 10_000)


def test_bodies_in_many_tiny_chunks_are_rejected_and_bodies_in_usual_ones_served(port):
    head = "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"
    head += "transfer-encoding: chunked\r\n\r\n"
    body = b'{"prompt": "hi"}'
    for blanks, status in (([b" " * 1000] * 3000, b"200"), ([b" "] * 200_000, b"400")):
        sent = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*blanks, body, b""))
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            with contextlib.suppress(OSError):
                client.sendall(head.encode() + sent)
            assert client.recv(12) == b"HTTP/1.1 " + status


def test_an_upgrade_to_a_websocket_is_ignored(port):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(
            b"GET /version HTTP/1.1\r\nhost: gateway\r\nconnection: upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n\r\n"
        )
        assert client.recv(99).startswith(b"HTTP/1.1 200 OK\r\n")


CROWDED = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from tandem.gateway.server import listen, serving
bound = listen("127.0.0.1", 0)
with serving(Starlette(routes=[Route("/", lambda _: Response("hi"))]), bound):
    print(bound.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def test_idle_connections_beyond_the_limit_of_files_do_not_stop_answers():
    with (
        subprocess.Popen(
            [sys.executable, "-c", CROWDED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as gateway,
        contextlib.ExitStack() as idle,
    ):
        address = "127.0.0.1", int(gateway.stdout.readline())
        for _ in range(300):
            idle.enter_context(socket.create_connection(address, timeout=30))
        for _ in range(30):  # invalid requests
            with socket.create_connection(address, timeout=30) as invalid:
                invalid.sendall(b"?\r\n\r\n")
                invalid.recv(1)
        assert httpx2.get(f"http://127.0.0.1:{address[1]}/", timeout=30).text == "hi"
        gateway.kill()
        lines = gateway.stderr.read().splitlines()
    assert [line for line in lines if "Invalid HTTP request" in line] == lines[:1]


def test_bodies_of_stalled_clients_use_little_memory(app):
    """Small bodies are accepted in any case."""
    size, head = 200_000, "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: {}\r\n\r\n"
    with (
        listen("127.0.0.1", 0) as bound,
        serving(app(max_body_bytes=size), bound),
        contextlib.ExitStack() as clients,
    ):
        port = bound.getsockname()[1]

        def status(length):
            with contextlib.suppress(OSError), request(port, metadata="x" * length) as connection:
                return connection.getresponse().status

        assert status(size - 999) == 200

        def is_full_after_one_more():
            stalled = clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):  # the gateway doesn't read the last ones
                stalled.sendall(head.format(size).encode() + b"x" * (size - 1))
            return status(size - 999) == 429

        assert eventually(is_full_after_one_more)
        assert status(9999) == 200
        clients.close()
        assert eventually(lambda: status(size - 999) == 200)


def test_clients_close_idle_connections_before_the_gateway_does(app):
    """A request that arrives while the gateway closes its connection would be lost."""
    config = server._server(app()).config
    assert config.timeout_keep_alive > httpx2.Limits().keepalive_expiry
    assert config.timeout_keep_alive > openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry
