"""A server's pages can be read, even if they are incomplete or the server doesn't respond."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tandem.bls.metrics.names import OLDEST_DELIVERY
from tandem.tools.triton.pages import all_exist, oldest_pending_response

PAGE = (
    f"# HELP {OLDEST_DELIVERY} seconds\n"
    f'{OLDEST_DELIVERY}{{loop="0",model="bls_stream"}} 2\n'
    f'{OLDEST_DELIVERY}{{loop="1",model="bls_stream"}} 40\n'
)


@contextmanager
def serving(page, *, more_bytes=0):
    """Serve a page at all paths except `none`. more_bytes: announced, but never sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404 if "none" in self.path else 200)
            self.send_header("Content-Length", str(len(page) + more_bytes))
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield server.server_port
        server.shutdown()


def test_pages_are_read_without_a_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(PAGE) as port:
        assert oldest_pending_response("127.0.0.1", port) == 40


def test_an_incomplete_metrics_page_counts_as_0():
    with serving(PAGE, more_bytes=1) as port:
        assert oldest_pending_response("127.0.0.1", port) == 0


def test_pages_are_found_only_if_all_of_them_exist():
    with serving(PAGE) as port:
        assert all_exist("127.0.0.1", port, "/metrics", "/v2/health/ready")
        assert not all_exist("127.0.0.1", port, "/metrics", "/v2/models/none/ready")
    assert not all_exist("127.0.0.1", 9, "/metrics")


def test_a_stopped_server_counts_as_0():
    assert oldest_pending_response("127.0.0.1", 9) == 0
