"""Reads Triton's HTTP pages. Ignores the proxies that the environment sets."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from tandem.bls.metrics import OLDEST_DELIVERY

SECONDS_TO_ANSWER = 5


def all_exist(host: str, port: int, *paths: str) -> bool:
    return all(_page(host, port, path)[0] == HTTPStatus.OK for path in paths)


def oldest_pending_response(host: str, port: int) -> float:
    """Return the age in seconds of the oldest response that Triton hasn't accepted.

    The value comes from the metrics; it is 0 if no response is pending.
    """
    text = _page(host, port, "/metrics")[1].decode()
    found = re.findall(rf"^{OLDEST_DELIVERY}{{.*}} (\S+)$", text, re.MULTILINE)
    return max(map(float, found), default=0.0)


def http_service(host: str, port: int) -> str | None:
    """Describe the HTTP service at a port for an error, or return None without one."""
    status, text = _page(host, port, "/v2")
    if status is None:
        return None
    return "Triton's HTTP port" if b'"extensions"' in text else "an HTTP port"


def _page(host: str, port: int, path: str) -> tuple[int | None, bytes]:
    """Return the status and body of a page. The status is None without a complete response."""
    with suppress(OSError, HTTPException):  # HTTPException: also if the host can't be in a URL
        connection = HTTPConnection(host.strip("[]"), port, timeout=SECONDS_TO_ANSWER)
        with closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
    return None, b""
