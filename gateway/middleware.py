"""Middleware for all requests: ids, counters, failures, keys and size limits."""

from __future__ import annotations

import hmac
import re
import uuid
from abc import ABC, abstractmethod
from http import HTTPStatus

from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.gateway.errors import CLIENT_CLOSED_REQUEST, LOG, ApiError, as_api_error
from tandem.gateway.metrics import GatewayMetrics

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
GUARDED = ("/v1/", "/tokenize", "/detokenize", "/tokenizer_info")


class Middleware(ABC):
    """Handles HTTP requests before the application does."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._handle if scope["type"] == "http" else self._app
        await handle(scope, receive, send)

    @abstractmethod
    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""


class Requests(Middleware):
    """Returns the request's `x-request-id` or a new one, counts requests, and reports failures.

    endpoints: the paths that are counted by name. Status 499: the client disconnected.
    """

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, endpoints: frozenset[str]) -> None:
        super().__init__(app)
        self._metrics = metrics
        self._endpoints = endpoints

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, status = scope["path"], None
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except SendTimeoutError:
            LOG.warning("closed the connection of a client that stopped reading")
        except Exception as error:
            if status is not None:
                raise
            await as_api_error(error).response(path)(scope, receive, sending)
        finally:
            endpoint = path if path in self._endpoints else "other"
            self._metrics.requests.labels(endpoint, status or CLIENT_CLOSED_REQUEST).inc()


class Keys(Middleware):
    """Rejects requests to `GUARDED` paths that don't have the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        super().__init__(app)
        self._key = key.encode()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(GUARDED):
            headers = Headers(scope=scope)
            kind, _, bearer = headers.get("authorization", "").partition(" ")
            given = [headers.get("x-api-key"), bearer if kind.lower() == "bearer" else None]
            keys = [key.encode("latin-1") for key in given if key]
            if not any(hmac.compare_digest(key, self._key) for key in keys):
                message = (
                    "the API key is missing or wrong; send Authorization: Bearer KEY or "
                    "x-api-key: KEY"
                )
                error = ApiError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key")
                await error.response(scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit(Middleware):
    """Rejects bodies that are too large; immediately if the request has a content-length."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        super().__init__(app)
        self._max_bytes = max_bytes

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await self._error.response(scope["path"])(scope, receive, send)
            return
        received = 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._error
            return message

        await self._app(scope, receiving, send)

    @property
    def _error(self) -> ApiError:
        return ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body is too large; the limit is {self._max_bytes} bytes",
            code="body_too_large",
        )
