"""Reads a request's body: a large one on a thread, as all streams wait for the event loop."""

from __future__ import annotations

import email.message
import json
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from tandem.gateway.aside import aside
from tandem.gateway.errors import ApiError, ClientGone, bad_request
from tandem.gateway.faults import invalid
from tandem.gateway.fields import quoted

Kind = TypeVar("Kind", bound=BaseModel)


async def read_body(kind: type[Kind], request: Request) -> Kind:
    """Return the body as `kind`; raise ApiError where it is none."""
    encoding = request.headers.get("content-encoding", "")
    if encoding.lower() not in ("", "identity"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content-encoding {quoted(encoding)} is not supported; send the body uncompressed",
        )
    try:
        raw = await request.body()
    except ClientDisconnect as error:
        raise ClientGone from error
    if not raw:
        raise bad_request("the body is missing")
    if not _is_json(request.headers.get("content-type", "")):
        raise bad_request("the body must be JSON: send content-type: application/json")
    return await aside(len(raw), partial(_read, kind, raw))


def _is_json(content_type: str) -> bool:
    """Whether it says so; what a web page of another host may send unasked never does."""
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    is_json = subtype == "json" or subtype.endswith("+json")
    return message.get_content_maintype() == "application" and is_json


def _read(kind: type[Kind], raw: bytes) -> Kind:
    try:
        return kind.model_validate(_parsed(raw))
    except ValidationError as error:
        raise invalid(error) from None


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error.msg}", code="invalid_json") from None
    except (ValueError, RecursionError):
        message = "the body is not JSON: it is no UTF-8, nests too deep, or has too long an integer"
        raise bad_request(message, code="invalid_json") from None
