"""A request's id and parameters, which Triton's HTTP server accepts as any bytes."""

from __future__ import annotations

from typing import Any

from tandem.bls.errors import BadRequest


def id_of(request: Any) -> str:
    """Return the client's id; "" if it is not UTF-8, because then it is not one of ours."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def parameters_of(request: Any) -> str:
    """Return the parameters as a JSON object; raise BadRequest if they are not UTF-8."""
    try:
        return str(request.parameters())
    except UnicodeDecodeError as error:
        raise BadRequest("the request's id and parameters must be UTF-8") from error
