"""Many clients of a gateway at once, and those that hang up, before emulated engines."""

import asyncio
import json
import urllib.request
from pathlib import Path

import pytest
from crowd import eventually, idle

from tandem.gateway.app import create_app
from tandem.gateway.server import listen, serving
from tandem.gateway.settings import GatewaySettings
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[2] / "profiles" / "emulated-zero.yaml"
CLIENTS, AT_ONCE, MORE_THAN_FIT = 1000, 50, 180
LONG = 1500


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A server and the port of a gateway before it."""
    planned = deployment.load(PROFILE)
    models = tmp_path_factory.mktemp("crowd") / "repository"
    repository.render(planned, models, link=True)
    with TritonServer(models, thread_pool_size=planned.thread_pool_size) as server:
        app = create_app(GatewaySettings(server.grpc_url, planned.tokenizer.folder))
        with listen("127.0.0.1", 0) as bound, serving(app, bound):
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


def running(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = "tandem_gateway_requests_running "
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def test_a_thousand_that_hang_up_leave_nothing(crowded):
    server, port = crowded

    async def hang_up(room):
        async with room:
            reader, writer = await ask(port)
            while not (await reader.readline()).startswith(b"data: {"):
                assert not reader.at_eof()
            writer.transport.abort()

    async def crowd():
        room = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(hang_up(room) for _ in range(CLIENTS)))

    asyncio.run(crowd())
    assert eventually(lambda: running(port) == 0, 10)
    assert eventually(lambda: idle(server), 10)


def test_slow_readers_hold_up_nobody(crowded):
    server, port = crowded

    async def scene():
        slow = [await ask(port) for _ in range(8)]
        for reader, _ in slow:
            assert (await reader.read(1)) == b"H"
        reader, writer = await ask(port, max_tokens=32)
        answer = await asyncio.wait_for(reader.readuntil(b"[DONE]\n\n"), 60)
        assert answer.count(b'"finish_reason":"length"') == 1
        writer.close()
        # They read on, and what they get is whole.
        rest = [await asyncio.wait_for(r.readuntil(b"[DONE]\n\n"), 60) for r, _ in slow]
        assert all(text.count(b'"finish_reason":"length"') == 1 for text in rest)
        for _, writer in slow:
            writer.close()

    asyncio.run(scene())
    assert eventually(lambda: running(port) == 0 and idle(server), 10)


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

    assert b"retry-after: 1" in asyncio.run(scene()).lower()
    assert eventually(lambda: running(port) == 0 and idle(server), 20)
