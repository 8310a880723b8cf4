"""Read the body of a request, and define the base classes of its objects."""

from __future__ import annotations

import difflib
import email.message
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from itertools import islice, pairwise
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from starlette.requests import ClientDisconnect, Request

from tandem.gateway.errors import ApiError, ClientGone, bad_request, too_large
from tandem.gateway.protocol.fields import (
    IGNORED,
    MAX_LEVELS,
    UNSUPPORTED,
    Unsupported,
    field_error,
    find_unreadable,
    quote,
)
from tandem.gateway.tasks import offload

Kind = TypeVar("Kind", bound=BaseModel)

# `json.loads` blocks all other requests: at these limits for up to 0.3 s, and for a body of 8 MB
# without limits for 2 s. One large body after another is parsed.
MAX_MEMBERS = 300_000  # lists, objects and their keys; enough for a bias of every token
MAX_ITEMS = 1_200_000  # values after a comma; enough for a prompt of a million ids
PARSER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parser")
MAX_ERRORS = 10  # maximum number of errors in one line
BY_KEY = "logit_bias"  # a field whose keys the client chooses
# The message that follows the name of a field, by pydantic's error type. The values in braces are
# in the error's context.
MESSAGES = {
    "bool_type": "must be a valid boolean",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "float_type": "must be a valid number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a valid integer",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} character",
    "string_type": "must be a string",
    "too_long": "must have at most {max_length} items; got {actual_length}",
    "too_short": "must have at least {min_length} item; got {actual_length}",
}


class Strict(BaseModel):
    """An object whose values aren't converted: neither true nor "1" is a number.

    null means that a field is missing.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class BodyObject(Strict):
    """An object in a body. Unknown fields are rejected.

    unsupported: known fields that are rejected. ignored: fields that have no effect.
    """

    unsupported: ClassVar[Mapping[str, Unsupported]] = {}
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _only_known_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = cls.known_fields() - cls.ignored
        for name, value in data.items():
            if name in known or name in cls.ignored or value is None:
                continue
            if name not in cls.unsupported:
                near = difflib.get_close_matches(quote(name), sorted(known), n=1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise field_error(quote(name), f"unknown field '{{path}}'{hint}", "unknown_field")
            why, neutral, code = cls.unsupported[name]
            # In Python, but not in JSON, True equals 1.
            if not any(
                value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral
            ):
                raise field_error(name, f"{{path}} isn't supported: {why}", code)
        return {name: value for name, value in data.items() if name in known}

    @classmethod
    def known_fields(cls) -> set[str]:
        return {field.alias or name for name, field in cls.model_fields.items()}


class Body(BodyObject):
    """A request's body."""

    unsupported = UNSUPPORTED
    ignored = IGNORED


async def read_body(kind: type[Kind], request: Request) -> Kind:
    """Return the body as an object of type `kind`. Raises ApiError if the body is invalid."""
    encoding = request.headers.get("content-encoding", "")
    if encoding.lower() not in ("", "identity"):
        raise ApiError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content-encoding {quote(encoding)} isn't supported; send the body uncompressed",
        )
    try:
        raw = await request.body()
    except ClientDisconnect as error:
        raise ClientGone from error
    if not raw:
        raise bad_request("the body is missing")
    if not _is_json(request.headers.get("content-type", "")):
        raise bad_request("the body must be JSON; set content-type: application/json")
    return await offload(len(raw), partial(_read, kind, raw), PARSER)


def _is_json(content_type: str) -> bool:
    # Browsers send this type to another host only if that host permits it (CORS).
    message = email.message.Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    is_json = subtype == "json" or subtype.endswith("+json")
    return message.get_content_maintype() == "application" and is_json


def _check_number(raw: bytes, marks: bytes, limit: int, what: str) -> None:
    """Reject a body in which these marks occur too often outside of strings."""
    if sum(raw.count(mark) for mark in marks) > limit:
        unescaped = raw.replace(rb"\\", b"").replace(rb"\"", b"")
        found = re.finditer(rb'"[^"]*"|([%s])' % re.escape(marks), unescaped)
        beyond = islice((match for match in found if match[1]), limit, None)
        if any(beyond):
            raise too_large(f"it has more than {limit} {what}")


def _read(kind: type[Kind], raw: bytes) -> Kind:
    _check_number(raw, b"[{:", MAX_MEMBERS, "lists, objects and keys")
    _check_number(raw, b",", MAX_ITEMS, "items")
    try:
        body = json.loads(raw)
    except json.JSONDecodeError as error:
        raise bad_request(f"the body isn't JSON: {error.msg}", code="invalid_json") from None
    except RecursionError:
        message = f"the body is nested more than {MAX_LEVELS} levels deep"
        raise bad_request(message, code="too_deep") from None
    except ValueError:
        message = "the body isn't JSON: it isn't UTF-8, or an integer has too many digits"
        raise bad_request(message, code="invalid_json") from None
    for name, value in body.items() if isinstance(body, dict) else ():
        if fault := find_unreadable([name, value]):
            path = quote(name.encode(errors="replace").decode())
            message, code = fault
            raise bad_request(message.format(path=path), param=path, code=code)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> ApiError:
    """Return one error for the client, with all errors that pydantic found in one line."""
    faults = error.errors(include_url=False)
    lines: dict[str, str] = {}  # by path
    given: dict[str, str] = {}  # quoted values by path; they follow the line
    for fault in faults:
        context = fault.get("ctx", {})
        path = ".".join(filter(None, [_path(fault["loc"]), context.get("field")]))
        message = MESSAGES.get(fault["type"])
        text = fault["msg"].replace("{path}", path)
        if message:
            text = message.format(**{name: _show(value) for name, value in context.items()})
        if path in lines:  # the field accepts several types
            lines[path] += f" or {text.removeprefix('must be ')}"
        elif fault["type"] == "missing":
            lines[path] = f"{path or 'the body'} is missing"
        elif "field" in context:
            lines[path] = text
        else:
            colon = "" if text.startswith("must ") else ":"
            lines[path] = f"{path or 'the body'}{colon} {text}"
            given[path] = "" if colon else _show_value(fault["input"])
    named = [line + given.get(path, "") for path, line in lines.items()][:MAX_ERRORS]
    if len(lines) > MAX_ERRORS:
        named.append(f"and {len(lines) - MAX_ERRORS} more")
    code = faults[0].get("ctx", {}).get("code")
    return bad_request("; ".join(named), param=next(iter(lines)) or None, code=code)


def _show(value: Any) -> Any:
    """Return a bound as JSON would show it: 1, not 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _show_value(value: Any) -> str:
    """Return "; got VALUE" for a string, a number or a boolean, and "" for other values."""
    if isinstance(value, str):
        return f'; got "{quote(value)}"'
    return f"; got {quote(json.dumps(value))}" if isinstance(value, int | float) else ""


def _path(location: tuple[int | str, ...]) -> str:
    """Return a path such as `messages[0].role`, without the names of pydantic's unions."""
    path = ""
    for before, part in pairwise(("", *location)):
        if isinstance(part, int):
            path += f"[{part}]"
        elif before == BY_KEY:
            path += f".{quote(part)}"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path
