"""What a request says besides its inputs, which Triton's HTTP server takes in any bytes."""

from __future__ import annotations

from typing import Any

from tandem.bls.errors import BadRequest


def id_of(request: Any) -> str:
    """Return the id that the client gave; "" for one that is not UTF-8: it is none of ours."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def parameters_of(request: Any) -> str:
    """Return the parameters as a JSON object; raise BadRequest if they are not UTF-8."""
    try:
        return str(request.parameters())
    except UnicodeDecodeError as error:
        raise BadRequest("the request's id or parameters are not UTF-8; encode them so") from error
