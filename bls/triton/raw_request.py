"""Reads a request's id and parameters. Triton's HTTP server accepts arbitrary bytes for both."""

from __future__ import annotations

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
