"""A TCP proxy that delays, stalls or cuts connections, as a network may."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import AbstractContextManager, suppress
from typing import TypeAlias

LOOPBACK = "127.0.0.1"
CHUNK = 1 << 16  # bytes
Due: TypeAlias = "queue.SimpleQueue[tuple[float, bytes]]"  # bytes, and when to send them


class Proxy(AbstractContextManager["Proxy"]):
    """Forwards connections to a server.

    delay: seconds that each byte takes in each direction. Threads instead of an event loop: asyncio
    rounds timers up to milliseconds.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self.delay = 0.0
        self._flows = threading.Event()
        self._flows.set()
        self._open: set[socket.socket] = set()
        self._listening = socket.create_server((LOOPBACK, 0))
        self.url = f"{LOOPBACK}:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        self.flow()
        self.cut()

    def stall(self) -> None:
        """Hold back all bytes until `flow`, but accept and keep connections."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # the proxy ends
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._server) as server:
            self._open |= {client, server}
            threads = []
            for source, sink in ((client, server), (server, client)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                due: Due = queue.SimpleQueue()
                threads.append(threading.Thread(target=self._read, args=(source, due)))
                threads.append(threading.Thread(target=self._write, args=(source, sink, due)))
            for thread in threads:
                thread.daemon = True
                thread.start()
            for thread in threads:
                thread.join()
            self._open -= {client, server}

    def _read(self, source: socket.socket, due: Due) -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            due.put((time.monotonic() + self.delay, data))

    def _write(self, source: socket.socket, sink: socket.socket, due: Due) -> None:
        while True:
            when, data = due.get()
            time.sleep(max(0.0, when - time.monotonic()))
            self._flows.wait()
            try:
                sink.sendall(data)
            except OSError:
                data = b""
            if not data:
                for end in (source, sink):
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                return
