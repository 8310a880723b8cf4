"""Serves the application, on the main thread or on one of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

SECONDS_TO_STOP = 5  # after a signal, requests may finish for this long
SECONDS_TO_END = 2  # after that, they may send an error for this long
SECONDS_TO_ASK = 30.0  # for a request; at most twice as long, then the client is disconnected
NOTHING = object()


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; call this from the main thread."""
    _server(app).run(sockets=[listening])


@contextmanager
def serving(app: FastAPI, listening: socket.socket) -> Iterator[None]:
    """Serve on a thread for as long as the context lasts."""
    server = _server(app)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="gateway", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(SECONDS_TO_STOP + SECONDS_TO_END + 5)


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free one. Raises OSError if the port is in use."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket names its protocol. Without it, the kernel delays
    # a chunk until the client has acknowledged the previous one, by up to 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(2048)
    except OSError:
        listening.close()
        raise
    return listening


class Connection(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
    """A client's connection, which closes if no complete request arrives in time.

    Uvicorn has no time limit for a request. A thousand connections that send nothing would use up
    the process's file descriptors.
    """

    _timer: asyncio.TimerHandle | None = None
    _waiting_for: Any = NOTHING  # the last request, while the rest of it or the next one is awaited

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._check_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check_later(self) -> None:
        self._timer = self.loop.call_later(SECONDS_TO_ASK, self._check)

    def _check(self) -> None:
        """Close the connection if no complete request has arrived since the last check."""
        request = self.cycle
        if request is not None and not (request.response_complete or request.more_body):
            self._waiting_for = NOTHING  # it is being answered
        elif self._waiting_for is request:
            self.transport.close()
            return
        else:
            self._waiting_for = request
        self._check_later()


class _Server(uvicorn.Server):
    """Ends unfinished requests with an error when it stops.

    Uvicorn would break off streams, and send a 500 without a body for other requests.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, and wait for the others to end."""
        end = self.config.app.state.serving.under_way.end  # type: ignore[union-attr]
        ending = asyncio.get_running_loop().call_later(SECONDS_TO_STOP, end)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            end()  # immediately after a second Ctrl-C


def _server(app: FastAPI) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=Connection,
        lifespan="on",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SECONDS_TO_STOP + SECONDS_TO_END,
        server_header=False,
    )
    return _Server(config)
