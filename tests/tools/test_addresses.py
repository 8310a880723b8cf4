"""Errors name addresses without a server, and addresses on which a server can't listen."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tandem.tools import cli
from tandem.tools.errors import TandemError
from tandem.tools.triton.server import Ports, claim_ports


@pytest.fixture
def http_port():
    """An HTTP port that serves Triton's server metadata."""

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"name":"triton","version":"2.51.0","extensions":[]}')

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Metadata) as service:
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        yield service.server_port
        service.shutdown()
        thread.join()


def test_an_http_port_is_reported_instead_of_the_grpc_port(http_port, capsys):
    assert cli.main(["generate", "x", "--url", f"127.0.0.1:{http_port}"]) == 1
    assert capsys.readouterr().err == (
        f"tandem: 127.0.0.1:{http_port} is Triton's HTTP port; set --url to the gRPC port, such as "
        "127.0.0.1:8001\n"
    )


def test_an_error_names_all_ports_in_use():
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        http, metrics = (bound.getsockname()[1] for bound in (one, other))
        with pytest.raises(TandemError) as refused:
            claim_ports(Ports(http, 0, metrics), "127.0.0.1")
    assert str(refused.value) == (
        f"can't listen on 127.0.0.1:{http} (http), 127.0.0.1:{metrics} (metrics): "
        "Address already in use; "
        "use --http-port 0 --metrics-port 0, or another --address"
    )
