"""Serves the application: until it is interrupted, or on a thread."""

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

SECONDS_TO_STOP = 5  # until requests under way are ended when the gateway stops
SECONDS_TO_END = 2  # for them to end then
SECONDS_TO_ASK = 30.0  # a client that takes up to twice as long for a request is cut off
NOTHING = object()


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM. Called from the main thread."""
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
    """Return a socket that listens; port 0 picks a free one. Raises OSError for a busy one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Only where a socket names its protocol does asyncio set TCP_NODELAY: without it the kernel
    # holds a chunk back until the client has acknowledged the one before, for up to 40 ms.
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
    """A client's connection, which closes when no whole request arrives in time.

    Uvicorn waits forever for the first request, for the rest of a head and for the rest of a body.
    A thousand connections that send nothing would take all of the process's file descriptors.
    """

    _timer: asyncio.TimerHandle | None = None
    _waiting_for: Any = NOTHING  # the last request, while the next one or its rest is awaited

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
        """Close the connection if no request was completed since the last check."""
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
    """Ends the requests that are still under way a while after it is asked to stop.

    uvicorn would cut them off: a stream would break off, and another request get a bare 500.
    """

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and wait for the others to end."""
        end = self.config.app.state.serving.under_way.end  # type: ignore[union-attr]
        ending = asyncio.get_running_loop().call_later(SECONDS_TO_STOP, end)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            end()  # a second Ctrl-C waits for nothing


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
