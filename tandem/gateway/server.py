"""Serve the application, on the main thread or on a separate one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_TO_STOP = 5  # time for requests to finish after a signal
SECONDS_TO_END = 0.5  # additional time for them to send an error
SECONDS_TO_ASK = 30  # per request; clients are disconnected after one to two times this
MAX_FILES = 16_384  # half of them for connections
MAX_CHUNKS = 4_000  # of a body; each takes time, however small it is
MAX_BACKLOG = 128  # new connections that are accepted at once
SECONDS_BETWEEN_LINES = 60  # of one kind in the log
# Names of loggers that warn about clients' requests.
LOGS_OF_CLIENTS = (
    "asyncio",
    "uvicorn.error",
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.trace.span",
)
NOTHING = object()


def serve(app: Starlette, listening: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Must run on the main thread.

    on_ready: called as soon as requests are served and signals stop the server.
    """
    # uvicorn handles only the first two. `nohup` ignores SIGHUP.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    _server(app, on_ready).run(sockets=[listening])


@contextmanager
def serving(app: Starlette, listening: socket.socket) -> Iterator[None]:
    """Serve on a separate thread while the context is open."""
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
    """Return a listening socket; port 0: any free port. Raises OSError if the port is in use."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the socket has an explicit protocol. Without TCP_NODELAY, the
    # kernel delays a chunk by up to 40 ms, until the client has acknowledged the previous one.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(2048)
    except OSError:
        listening.close()
        raise
    return listening


class _Parser(h11.Connection):
    """Rejects a body in very many chunks, such as one byte each."""

    _num_chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = 0
        elif isinstance(event, h11.Data):
            self._num_chunks += event.chunk_end
            if self._num_chunks > MAX_CHUNKS:
                raise h11.RemoteProtocolError("too many chunks")
        return event


class Connection(H11Protocol):
    """A client's connection, which is closed if no complete request arrives in time.

    h11 limits the size of headers. httptools, which uvicorn prefers if it is installed, does not.
    Uvicorn doesn't limit the time for a request. If there are too many connections, a new one
    replaces one that waits for a request. Otherwise idle connections would use up the process's
    file descriptors.
    """

    max_connections = MAX_FILES // 2
    _timer: asyncio.TimerHandle | None = None
    _waiting_for: Any = NOTHING  # the last request, while its rest or the next request is awaited

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Parser(h11.SERVER)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._check_later()
        if len(self.connections) > self.max_connections:
            others = (other for other in self.connections if isinstance(other, Connection))
            waiting = (other for other in others if other.is_waiting and other != self)
            next(waiting, self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def is_waiting(self) -> bool:
        """Whether the connection is open and no complete request is being answered."""
        request = self.cycle
        is_answering = request is not None and not (request.response_complete or request.more_body)
        return not (is_answering or self.transport.is_closing())

    def _check_later(self) -> None:
        self._timer = self.loop.call_later(SECONDS_TO_ASK, self._check)

    def _check(self) -> None:
        """Close the connection if no complete request has arrived since the last check."""
        request = self.cycle
        if not self.is_waiting:
            self._waiting_for = NOTHING
        elif self._waiting_for is request:
            self.transport.close()
            return
        else:
            self._waiting_for = request
        self._check_later()


class _OncePerMinute(logging.Filter):
    """Drops a line if a line of the same kind was logged within the last minute.

    Otherwise clients could fill the disk with warnings about their requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}  # when a line was logged, by kind

    def filter(self, record: logging.LogRecord) -> bool:
        kind = str(record.msg).partition("\n")[0]
        if record.created - self._last.get(kind, 0) < SECONDS_BETWEEN_LINES:
            return False
        self._last[kind] = record.created
        return True


_ONCE = _OncePerMinute()


class _Server(uvicorn.Server):
    """Ends unfinished requests with an error when it stops.

    Uvicorn would cut off streams, and send a 500 without a body for other requests.
    """

    on_ready: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more requests, and wait for the running ones to end."""
        ending = asyncio.create_task(self._end_requests(SECONDS_TO_STOP))
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await self._end_requests(0)  # immediately after a second Ctrl-C

    async def _end_requests(self, seconds: float) -> None:
        """After this time, end requests that Triton is serving, then those that are incomplete."""
        await asyncio.sleep(seconds)
        self.config.app.state.serving.triton.stop()  # type: ignore[union-attr]
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=SECONDS_TO_END)
        for task in self.server_state.tasks:
            task.cancel()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=SECONDS_TO_END)


def _allow_files() -> int:
    """Raise this process's limit of open files, if it is low. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(soft, min(hard, MAX_FILES))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], MAX_FILES)


def _server(app: Starlette, on_ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
    files = _allow_files()
    Connection.max_connections = files // 2
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",  # a WebSocket would leave its `Connection`
        lifespan="on",
        log_level="warning",
        access_log=False,
        backlog=min(MAX_BACKLOG, files // 8),
        # `Connection` closes idle connections. By default, uvicorn closes them after five seconds,
        # exactly when most Python clients send their last request.
        timeout_keep_alive=2 * SECONDS_TO_ASK,
        timeout_graceful_shutdown=int(SECONDS_TO_STOP + 4 * SECONDS_TO_END),
        server_header=False,
    )
    for name in LOGS_OF_CLIENTS:
        logging.getLogger(name).addFilter(_ONCE)
    server = _Server(config)
    server.on_ready = on_ready
    return server
