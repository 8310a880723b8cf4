"""What the pages of a Triton say. No proxy is asked, whatever the environment names."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException

from tandem.bls.metric_names import OLDEST_DELIVERY

SECONDS_TO_ANSWER = 5


def are_found(host: str, port: int, *paths: str) -> bool:
    """Whether all these pages are there; not where nobody answers."""
    with suppress(OSError, HTTPException), closing(_connection(host, port)) as connection:
        return all(_page(connection, path)[0] == 200 for path in paths)
    return False


def oldest_untaken(host: str, port: int) -> float:
    """For how many seconds Triton has not taken a response, by the page of its metrics.

    0 where the page says nothing of it, or breaks off.
    """
    text = ""
    with suppress(OSError, HTTPException), closing(_connection(host, port)) as connection:
        text = _page(connection, "/metrics")[1].decode()
    found = re.findall(rf"^{OLDEST_DELIVERY}{{.*}} (\S+)$", text, re.MULTILINE)
    return max(map(float, found), default=0.0)


def http_service(host: str, port: int) -> str | None:
    """Say which HTTP service answers at a port; None if none does."""
    with suppress(OSError, HTTPException), closing(_connection(host, port)) as connection:
        is_triton = b'"extensions"' in _page(connection, "/v2")[1]
        return "Triton's HTTP port" if is_triton else "an HTTP port"
    return None


def _connection(host: str, port: int) -> HTTPConnection:
    return HTTPConnection(host.strip("[]"), port, timeout=SECONDS_TO_ANSWER)


def _page(connection: HTTPConnection, path: str) -> tuple[int, bytes]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()
