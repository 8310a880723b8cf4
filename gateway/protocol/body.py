"""A request's body: how it is read, and the objects that it consists of."""

from __future__ import annotations

import email.message
import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request

from tandem.gateway.errors import ApiError, ClientGone, bad_request
from tandem.gateway.protocol import fields
from tandem.gateway.protocol.faults import invalid
from tandem.gateway.protocol.fields import Refused, quoted
from tandem.gateway.tasks import aside

Kind = TypeVar("Kind", bound=BaseModel)

NOTHING_REFUSED: Mapping[str, Refused] = MappingProxyType({})


class Strict(BaseModel):
    """An object whose values must have their types: true is not a number, and neither is "1"."""

    model_config = ConfigDict(strict=True)


class Body(Strict):
    """A request's body. Unknown fields are rejected by name; some known ones are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        return fields.accepted(data, cls.model_fields) if isinstance(data, dict) else data


class BodyObject(Strict):
    """An object in a body. Unknown fields are rejected by name; null is the same as a missing one.

    place: the object's path in the body. refused: fields that are known but rejected.
    """

    place: ClassVar[str]
    refused: ClassVar[Mapping[str, Refused]] = NOTHING_REFUSED

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return fields.taken(data, known, cls.refused, cls.place)


async def read_body(kind: type[Kind], request: Request) -> Kind:
    """Return the body as `kind`; raise ApiError if it isn't one. A long one is read on a thread."""
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
    # Browsers send no such type to another host unless that host allows it first.
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
