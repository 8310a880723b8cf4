"""A server's pages can be read, even if they are incomplete or the server doesn't respond."""

from http_server import http_server, send

from tandem.bls.metrics import OLDEST_DELIVERY
from tandem.tools.triton.status import all_exist, oldest_pending_response

PAGE = (
    f"# HELP {OLDEST_DELIVERY} seconds\n"
    f'{OLDEST_DELIVERY}{{model="bls_stream"}} 2\n'
    f'{OLDEST_DELIVERY}{{model="other"}} 40\n'
)


def serving(page, *, more_bytes=0):
    """Serve a page at all paths except `none`. more_bytes: announced, but never sent."""

    def answer(request):
        send(request, 404 if "none" in request.path else 200, page, more_bytes=more_bytes)

    return http_server(answer)


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
