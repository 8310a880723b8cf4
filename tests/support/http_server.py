"""A small HTTP server for tests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def http_server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """Run a server whose requests are answered by a function; yield its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        # Clients may disconnect early.
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    body: str | bytes = b"",
    headers: dict[str, str] | None = None,
    *,
    more_bytes: int = 0,
) -> None:
    """Send a response. more_bytes: bytes that are announced but not sent."""
    data = body.encode() if isinstance(body, str) else body
    request.send_response(status)
    length = {"Content-Length": str(len(data) + more_bytes)}
    for name, value in (length | (headers or {})).items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(data)
