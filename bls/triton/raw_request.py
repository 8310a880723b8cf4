"""Reads a request's id, parameters and timeout. Triton accepts arbitrary bytes over HTTP."""

from __future__ import annotations

import json
from typing import Any

from tandem.bls.errors import BadRequest


def id_of(request: Any) -> str:
    """Return the request's id, or "" if it isn't UTF-8.

    A request with such an id can't be stopped.
    """
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def parameters_of(request: Any) -> str:
    """Return the parameters as a JSON object; raise BadRequest if they aren't UTF-8."""
    try:
        return str(request.parameters())
    except UnicodeDecodeError as error:
        raise BadRequest("the request's id and parameters must be UTF-8") from error


def timeout_of(request: Any, parameters: str) -> int:
    """Return the client's timeout for the request in microseconds; 0: none.

    Triton reads `timeout` from `infer`'s parameters. From `generate`, it passes the key on unread.
    """
    timeout = request.timeout() or json.loads(parameters or "{}").get("timeout", 0)
    if type(timeout) is not int or timeout < 0:
        raise BadRequest("parameter 'timeout' must be a number of microseconds, such as 5000000")
    return timeout
