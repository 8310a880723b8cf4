"""Many clients of a gateway at once, and those that hang up, before emulated engines."""

import asyncio
import json
import socket
import urllib.request

import pytest
from crowd import idle
from live_triton import eventually
from scale import scaled

from tandem.gateway.app import create_app
from tandem.gateway.server import listen, serving
from tandem.gateway.settings import GatewaySettings

from .conftest import emulated_zero, serving_fallibly

AT_ONCE, MORE_THAN_FIT = 50, 180
LONG = 1500
DONE = b"[DONE]\n\n"
STEP_MS = 100.0  # of the target, so that the cores are the gateway's while an answer lasts
FEW_BYTES = 4096  # what the kernel is asked to hold of an answer that nobody reads


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A server whose target hangs on demand, and the port of a gateway before it."""
    folder = tmp_path_factory.mktemp("crowd")
    planned = emulated_zero(folder, step_ms={"target": STEP_MS})
    with serving_fallibly(planned, folder) as server:
        app = create_app(GatewaySettings(server.grpc_url, planned.tokenizer.folder))
        with listen("127.0.0.1", 0) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, FEW_BYTES)
            with serving(app, bound):
                yield server, bound.getsockname()[1]


def request(**given):
    body = {"prompt": [5, 6, 7], "max_tokens": LONG, "ignore_eos": True, "stream": True} | given
    text = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(text), text)
    )


async def ask(port, **given):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write(request(**given))
    return reader, writer


async def ask_slowly(port, **given):
    """Send a request and let little of the answer come before it is read."""
    connection = socket.socket()
    window(connection, FEW_BYTES)  # before it connects: later the kernel has promised more
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1)
    writer.write(request(**given))
    return reader, writer


def window(connection, size):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


async def read_on(reader, writer):
    """Read the rest of an answer."""
    window(writer.get_extra_info("socket"), 2**20)
    text = b""
    while DONE not in text[-100:]:
        part = await reader.read(2**16)
        assert part
        text += part
    return text


def running(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = "tandem_gateway_requests_running "
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("clients", scaled(100, 1000))
def test_many_that_hang_up_leave_nothing(crowded, clients):
    server, port = crowded

    async def hang_up(room):
        async with room:
            reader, writer = await ask(port)
            while not (await reader.readline()).startswith(b"data: {"):
                assert not reader.at_eof()
            writer.transport.abort()

    async def crowd():
        room = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(hang_up(room) for _ in range(clients)))

    asyncio.run(crowd())
    assert eventually(lambda: running(port) == 0 and idle(server))


def test_slow_readers_hold_up_nobody(crowded):
    server, port = crowded

    async def scene():
        asked = {"max_tokens": 300, "n": 4, "return_token_details": True}
        slow = [await ask_slowly(port, **asked) for _ in range(8)]
        for reader, _ in slow:
            assert (await reader.read(1)) == b"H"
        reader, writer = await ask(port, max_tokens=32)
        answer = await reader.readuntil(DONE)
        assert answer.count(b'"finish_reason":"length"') == 1
        writer.close()
        # The answers have more bytes than are held on their way: they wait for who reads them.
        assert await asyncio.to_thread(eventually, lambda: idle(server) and running(port) == 8)
        rest = await asyncio.gather(*(read_on(*one) for one in slow))
        assert all(text.count(b'"finish_reason":"length"') == 4 for text in rest)
        for _, writer in slow:
            writer.close()

    asyncio.run(scene())
    assert eventually(lambda: running(port) == 0 and idle(server))


def test_too_many_requests_are_asked_to_come_again(crowded):
    server, port = crowded

    async def scene():
        clients = [await ask(port) for _ in range(MORE_THAN_FIT)]
        heads = {asyncio.create_task(r.readuntil(b"\r\n\r\n")) for r, _ in clients}
        refused = b""
        while b" 429 " not in refused:
            done, heads = await asyncio.wait(heads, return_when=asyncio.FIRST_COMPLETED)
            refused = next((h for h in (t.result() for t in done) if b" 429 " in h), b"")
        for task in heads:
            task.cancel()
        await asyncio.gather(*heads, return_exceptions=True)
        for _, writer in clients:
            writer.transport.abort()
        return refused

    with server.faults.of("target", "hold"):  # nobody is answered before all have come
        assert b"retry-after: 1" in asyncio.run(scene()).lower()
    assert eventually(lambda: running(port) == 0 and idle(server))
