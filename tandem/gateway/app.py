"""The application: its routes and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from tandem.gateway.errors import HTTP_CODES, MESSAGES_PATH, ApiError
from tandem.gateway.middleware import POOLS_PATH, REQUEST_ID_HEADERS, RequestMiddleware
from tandem.gateway.models import VERSION
from tandem.gateway.protocol.fields import quote
from tandem.gateway.serving import Serving
from tandem.gateway.settings import GatewaySettings
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.triton.backend import Triton

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

PAGE = Path(__file__).parent / "page"
# The page only calls its own gateway, and other sites can't frame it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}


def create_app(
    settings: GatewaySettings,
    connect: Callable[[str], Triton] = Triton,
    spans: SpanProcessor | None = None,
) -> Starlette:
    """Return the gateway as an ASGI application.

    connect: makes the connection to Triton. spans: gets the spans of requests instead of the
    settings' collector. Raises errors from loading the tokenizer and the chat
    template.
    """
    tokenizer = ChatTokenizer(settings.tokenizer, settings.chat_template)
    serving = Serving(
        connect(settings.url),
        tokenizer,
        open_objects=settings.open_objects,
        target=settings.model or settings.tokenizer.absolute().name,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await serving.triton.close()

    routes = [  # those for GET also answer HEAD
        Route("/v1/chat/completions", serving.chat_completions, methods=["POST"]),
        Route("/v1/completions", serving.completions, methods=["POST"]),
        Route("/v1/responses", serving.responses, methods=["POST"]),
        Route(MESSAGES_PATH, serving.messages, methods=["POST"]),
        Route(f"{MESSAGES_PATH}/count_tokens", serving.count_tokens, methods=["POST"]),
        Route("/v1/models", serving.models),
        Route("/v1/models/", serving.models),
        Route("/v1/models/{name:path}", serving.model),
        Route(POOLS_PATH, serving.lookup_pools, methods=["GET", "DELETE"]),
        Route(f"{POOLS_PATH}/{{id}}", serving.clear_lookup_pool, methods=["DELETE"]),
        Route("/tokenize", serving.tokenize, methods=["POST"]),
        Route("/detokenize", serving.detokenize, methods=["POST"]),
        Route("/tokenizer_info", serving.tokenizer_info),
        Route("/health", serving.health),
        Route("/health/ready", serving.health),
        Route("/ping", serving.ping, methods=["GET", "POST"]),
        Route("/metrics", serving.prometheus_metrics),
        Route("/version", version),
        Route("/", page),
    ]
    app = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _respond_with_error}
    )
    app.router.redirect_slashes = False
    app.mount("/page", StaticFiles(directory=PAGE))
    app.state.serving = serving
    app.add_middleware(
        RequestMiddleware,
        metrics=serving.metrics,
        endpoints=frozenset(route.path for route in routes),
        max_body_bytes=settings.max_body_bytes,
        keys=settings.api_keys,
        operator_keys=settings.operator_keys,
        allowed_origins=settings.allowed_origins,
        allowed_hosts=settings.allowed_hosts,
        is_stopping=lambda: serving.triton.stopped,
    )
    if spans or settings.traces_url:
        from tandem.gateway import tracing  # noqa: PLC0415  an extra

        processor = spans or tracing.export_to(settings.traces_url or "")
        app.add_middleware(tracing.TracingMiddleware, processor=processor)
    if settings.allowed_origins:
        app.add_middleware(  # added last, so it handles requests first
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=REQUEST_ID_HEADERS,
        )
    return app


async def page(_: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


async def version(_: Request) -> Response:
    return JSONResponse({"version": VERSION})


async def _respond_with_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {quote(request.url.path)}: {error.detail}"
    code = HTTP_CODES.get(error.status_code)
    response = ApiError(error.status_code, message, code=code).response(request.url.path)
    response.headers.update(error.headers or {})
    return response
