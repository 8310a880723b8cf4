"""The Triton servers that run on this machine, and why none answers at an address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

PROGRAM = "tritonserver"
LOCAL = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "::")
SECONDS = 2.0


class Running(NamedTuple):
    """A server's process, and the ports that it was given."""

    process: int
    http: int
    grpc: int
    metrics: int

    @property
    def grpc_url(self) -> str:
        """Where to ask it from here."""
        return f"127.0.0.1:{self.grpc}"


def running_servers() -> list[Running]:
    """Return the servers whose command lines can be read, those that start or stop among them."""
    return [*_found()]


def why_unreachable(url: str) -> str:
    """Say in one line why no gRPC server answers at ``host:port``, and what to do."""
    host, _, number = url.rpartition(":")
    port = int(number)
    servers = running_servers() if host.strip("[]") in LOCAL else []
    if kind := _http_service(host.strip("[]"), port):
        known = [server.grpc for server in servers if port in (server.http, server.metrics)]
        right = f"{host}:{known[0]}" if known else f"{host}:PORT (8001 unless it was changed)"
        return f"{url} is {kind}; say its gRPC port: --url {right}"
    if any(server.grpc == port for server in servers):
        return f"the server at {url} is still starting, or stopping; wait for it and try again"
    if reachable := [server.grpc_url for server in servers if _accepts(server.grpc)]:
        return f"no server answers at {url}; one runs here: say --url {' or '.join(reachable)}"
    return f"no server answers at {url}; start one with: tandem up"


def _found() -> Iterator[Running]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            program, *options = (entry / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue  # it ended meanwhile
        if Path(program).name == PROGRAM:
            given = dict(option.lstrip("-").partition("=")[::2] for option in options)
            if given.get("allow-grpc") == "false":
                continue  # a further rank of a server
            ports = [
                int(number) if number.isdecimal() else default
                for name, default in (("http", 8000), ("grpc", 8001), ("metrics", 8002))
                for number in [given.get(f"{name}-port", "")]
            ]
            yield Running(int(entry.name), *ports)


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS):
            return True
    except OSError:
        return False


def _http_service(host: str, port: int) -> str | None:
    """Say which HTTP service answers there; None where none does."""
    connection = HTTPConnection(host, port, timeout=SECONDS)
    try:
        connection.request("GET", "/v2")
        triton = b'"extensions"' in connection.getresponse().read()
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
    return "Triton's HTTP port" if triton else "an HTTP port, not Triton's gRPC port"
