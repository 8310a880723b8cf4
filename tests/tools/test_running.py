"""Why no server answers: what runs on this machine is looked at, and named."""

import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tandem.tools.errors import TandemError
from tandem.tools.triton import running, server
from tandem.tools.triton.running import Running, running_servers, why_unreachable
from tandem.tools.triton.server import Ports, claim_ports


@pytest.fixture
def known(monkeypatch):
    """The servers that run, for as long as the test: none until it names some."""
    servers = []
    for module in (running, server):
        monkeypatch.setattr(module, "running_servers", lambda: servers)
    return servers


@pytest.fixture
def listening():
    """A port that somebody listens on, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield busy.getsockname()[1]


@pytest.fixture
def http_port():
    """A port where HTTP is spoken, and a page tells what the server is, as Triton's does."""

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


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_process_that_is_a_triton_is_found_with_its_ports():
    program = "import sys; print(flush=True); sys.stdin.read()"
    arguments = ["tritonserver", "-c", program, "--http-port=1", "--grpc-port=2"]
    with subprocess.Popen(
        arguments, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert Running(process.pid, 1, 2, 8002) in running_servers()
        process.stdin.close()
    assert process.pid not in [found.process for found in running_servers()]


def test_no_server_at_all_is_said_with_how_to_start_one(known):
    url = f"127.0.0.1:{free_port()}"
    assert why_unreachable(url) == f"no server answers at {url}; start one with: tandem up"


def test_server_on_another_port_is_named(known, listening):
    known.append(Running(1, 1, listening, 2))
    url = f"127.0.0.1:{free_port()}"
    assert why_unreachable(url) == (
        f"no server answers at {url}; one runs here: say --url 127.0.0.1:{listening}"
    )


def test_server_on_this_machine_is_no_matter_when_another_was_meant(known, listening, monkeypatch):
    known.append(Running(1, 1, listening, 2))
    monkeypatch.setattr(running, "_http_service", lambda host, port: None)
    assert "start one with: tandem up" in why_unreachable("elsewhere:8001")


def test_server_that_does_not_listen_yet_is_worth_waiting_for(known):
    port = free_port()
    known.append(Running(1, 1, port, 2))
    assert why_unreachable(f"127.0.0.1:{port}") == (
        f"the server at 127.0.0.1:{port} is still starting, or stopping; wait for it and try again"
    )


def test_http_port_is_distinguished_from_the_grpc_port(known, http_port):
    url = f"127.0.0.1:{http_port}"
    assert why_unreachable(url) == (
        f"{url} is Triton's HTTP port; say its gRPC port: --url 127.0.0.1:PORT (8001 unless it was "
        "changed)"
    )
    known.append(Running(1, http_port, 7, 2))
    assert why_unreachable(url).endswith("say its gRPC port: --url 127.0.0.1:7")


def test_all_taken_ports_are_named_at_once(known, listening):
    with socket.create_server(("127.0.0.1", 0)) as other:
        metrics = other.getsockname()[1]
        with pytest.raises(TandemError) as refused:
            claim_ports(Ports(listening, 0, metrics), "127.0.0.1")
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1: {listening} (http), {metrics} (metrics): Address already in "
        "use; say --http-port 0 --metrics-port 0, or another --address"
    )


def test_ports_that_a_triton_has_may_come_free_soon(known, listening):
    known.append(Running(77, listening, 1, 2))
    with pytest.raises(TandemError) as refused:
        claim_ports(Ports(listening, 0, 0), "127.0.0.1")
    assert str(refused.value) == (
        f"cannot listen on 127.0.0.1: {listening} (http) taken by a Triton server (process 77); if "
        "it is stopping, wait and try again, or say --http-port 0"
    )
