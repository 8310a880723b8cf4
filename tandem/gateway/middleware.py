"""Checks of every request (`Host`, origin, key, size), request ids, counters and failures."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import uuid
from collections.abc import Callable, Collection
from hashlib import blake2b
from http import HTTPStatus
from urllib.parse import urlsplit

from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.gateway.errors import (
    CLIENT_CLOSED_REQUEST,
    LOG,
    ApiError,
    ClientGone,
    as_api_error,
    gateway_stopped,
    too_large,
)
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.protocol.fields import quote

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
REQUEST_ID_HEADERS = ("x-request-id", "request-id")  # OpenAI's and Anthropic's
# A body counts until its request ends. Stalled clients can't keep out small bodies.
MAX_BODIES = 16  # maximum size of all large bodies, in bodies of the maximum size
SMALL_BODY = 65_536  # bytes
CLIENT = "tandem.client"  # name of the client's API key in a request's scope, if there are several
POOLS_PATH = "/lookup_pools"  # needs an operator's key
GUARDED = ("/v1/", "/tokenize", "/detokenize", "/tokenizer_info")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LOCAL_NAMES = (".localhost", ".local", ".internal")  # no site on the internet has such a name


class RequestMiddleware:
    """Checks and counts requests, adds their ids, and reports failures.

    endpoints: the paths that are counted by name. Status 499: the client disconnected. keys: the
    API keys for `GUARDED` paths; (): no authentication. operator_keys: those for `POOLS_PATH`; ():
    no one may use it. allowed_origins, allowed_hosts: see
    `GatewaySettings`. is_stopping: returns whether the gateway is shutting down.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: GatewayMetrics,
        endpoints: frozenset[str],
        max_body_bytes: int,
        keys: Collection[str],
        operator_keys: Collection[str],
        allowed_origins: Collection[str],
        allowed_hosts: Collection[str] | None,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._endpoints = endpoints
        self._max_body_bytes = max_body_bytes
        self._keys = _digests(keys)
        self._operator_keys = _digests(operator_keys)
        self._allowed_origins = allowed_origins
        self._allowed_hosts = allowed_hosts
        self._is_stopping = is_stopping
        self._bytes_in_flight = 0  # of all bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"], Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        status, received = None, 0

        async def receive_wrapper() -> Message:
            nonlocal received
            message = await receive()
            num_bytes = len(message.get("body", b""))
            received += num_bytes
            self._bytes_in_flight += num_bytes
            self._check_size(received)
            return message

        async def send_wrapper(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(dict.fromkeys(REQUEST_ID_HEADERS, request_id))
            await send(message)

        try:
            self._check_host(headers)
            self._check_origin(scope["method"], headers)
            self._check_key(scope, headers)
            self._check_announced_size(headers)
            await self._app(scope, receive_wrapper, send_wrapper)
        except ClientGone:
            pass
        except SendTimeoutError:
            LOG.warning("closed the connection of a client that stopped reading")
        except (Exception, asyncio.CancelledError) as error:
            # uvicorn cancels requests when it stops, but not when their clients leave. So any other
            # cancellation is a bug.
            stopped = isinstance(error, asyncio.CancelledError) and self._is_stopping()
            if status is None:
                answer = gateway_stopped() if stopped else as_api_error(error)
                await answer.response(path)(scope, receive, send_wrapper)
            elif stopped:
                LOG.warning("stopped before a client had read its response")
            else:
                raise
        finally:
            self._bytes_in_flight -= received
            endpoint = path if path in self._endpoints else "other"
            self._metrics.requests.labels(endpoint, status or CLIENT_CLOSED_REQUEST).inc()

    def _check_host(self, headers: Headers) -> None:
        """Reject pages that reach the gateway under their site's own name (DNS rebinding)."""
        name = _host_name(headers.get("host", ""))
        allowed = self._allowed_hosts
        if allowed is None or _is_local(name) or {name, "*"}.intersection(allowed):
            return
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            f"host '{quote(name)}' isn't allowed; start the gateway with --allow-host",
            code="host_not_allowed",
        )

    def _check_origin(self, method: str, headers: Headers) -> None:
        """Reject requests that change something and come from another site's page.

        Browsers send some of them without asking, such as a POST of text/plain, and only hide the
        response from the page. Clients that aren't browsers send none of these headers.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site is None:  # an old browser, or neither https nor localhost
            same = origin is None or origin.partition("://")[2] == headers.get("host")
        else:
            same = site in {"same-origin", "none"}  # none: the user entered the address
        allowed = {origin, "*"}.intersection(self._allowed_origins)
        if not (same or allowed or method in SAFE_METHODS):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"origin '{quote(origin or '')}' isn't allowed; start the gateway with "
                "--allow-origin",
                code="origin_not_allowed",
            )

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        keys = self._keys if path.startswith(GUARDED) else {}
        if path.startswith(POOLS_PATH):
            keys = self._operator_keys
            if not keys:
                raise ApiError(
                    HTTPStatus.FORBIDDEN,
                    f"{POOLS_PATH} needs an operator's key; start the gateway with "
                    "--operator-key-file",
                    code="no_operator_key",
                )
        if not keys:
            return
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key"), bearer if kind.lower() == "bearer" else None]
        sent = [key.encode("latin-1") for key in given if key]
        for key, name in keys.items():
            if any(hmac.compare_digest(one, key) for one in sent):
                scope[CLIENT] = name if len(keys) > 1 else None
                return
        raise ApiError(
            HTTPStatus.UNAUTHORIZED,
            "the API key is missing or wrong; send Authorization: Bearer KEY or x-api-key: KEY",
            code="invalid_api_key",
        )

    def _check_announced_size(self, headers: Headers) -> None:
        announced = headers.get("content-length", "")
        if announced.isdecimal():  # before the body arrives
            self._check_size(int(announced))

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_body_bytes:
            raise too_large(f"the limit is {self._max_body_bytes} bytes")
        if num_bytes > SMALL_BODY and self._bytes_in_flight > MAX_BODIES * self._max_body_bytes:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "the gateway has too many large bodies; retry later",
                code="overloaded",
            )


def _digests(keys: Collection[str]) -> dict[bytes, str]:
    return {os.fsencode(key): blake2b(os.fsencode(key)).hexdigest() for key in keys}


def _host_name(host: str) -> str:
    """Return a host without its port, in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host


def _is_local(name: str) -> bool:
    """Whether no site on the internet can have this name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." not in name or name.endswith(LOCAL_NAMES)
    return True
