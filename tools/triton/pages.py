"""What the pages of a Triton say. No proxy is asked, whatever the environment names."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from tandem.bls.metrics.names import OLDEST_DELIVERY

SECONDS_TO_ANSWER = 5


def are_found(host: str, port: int, *paths: str) -> bool:
    return all(_page(host, port, path)[0] == HTTPStatus.OK for path in paths)


def oldest_untaken(host: str, port: int) -> float:
    """Return how many seconds Triton has not taken a response, by its metrics.

    0 if the metrics don't say, or break off.
    """
    text = _page(host, port, "/metrics")[1].decode()
    found = re.findall(rf"^{OLDEST_DELIVERY}{{.*}} (\S+)$", text, re.MULTILINE)
    return max(map(float, found), default=0.0)


def http_service(host: str, port: int) -> str | None:
    """Return which HTTP service answers at a port; None if none does."""
    status, text = _page(host, port, "/v2")
    if status is None:
        return None
    return "Triton's HTTP port" if b'"extensions"' in text else "an HTTP port"


def _page(host: str, port: int, path: str) -> tuple[int | None, bytes]:
    """Return status and body of a page; no status if no HTTP server answers in full."""
    connection = HTTPConnection(host.strip("[]"), port, timeout=SECONDS_TO_ANSWER)
    with suppress(OSError, HTTPException), closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    return None, b""
