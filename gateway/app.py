"""The application: every endpoint, and what becomes of errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from tandem.gateway.errors import CLIENT_CLOSED_REQUEST, HTTP_CODES, ApiError, ClientGone
from tandem.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from tandem.gateway.middleware import BodyLimit, Failures, Keys, RequestCounts, RequestIds
from tandem.gateway.models import VERSION
from tandem.gateway.protocol.body import read_body
from tandem.gateway.protocol.fields import quoted
from tandem.gateway.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tandem.gateway.serving import Serving
from tandem.gateway.settings import GatewaySettings
from tandem.gateway.tasks import UnderWay
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.triton.backend import Triton

PAGE = Path(__file__).parent / "page"
# The page asks nobody but its own gateway, and nobody shows it in a frame.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}


def create_app(settings: GatewaySettings, connect: Callable[[str], Triton] = Triton) -> FastAPI:
    """Return the gateway as an ASGI application.

    connect: makes the connection to Triton, inside the event loop. Raises what a tokenizer's folder
    that cannot be read raises.
    """
    tokenizer = ChatTokenizer(settings.tokenizer, settings.chat_template)
    metrics = GatewayMetrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.serving = Serving(
            connect(settings.url),
            tokenizer,
            metrics,
            UnderWay(),
            open_objects=settings.open_objects,
        )
        try:
            yield
        finally:
            await app.state.serving.close()

    app = FastAPI(title="Tandem", openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    _add_errors(app)
    _add_openai(app)
    _add_tokenizer(app)
    _add_operations(app)
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")  # the server leaves out the body
    endpoints = frozenset(route.path for route in app.routes)  # type: ignore[attr-defined]
    app.mount("/page", StaticFiles(directory=PAGE))
    # The last one added sees a request first.
    app.add_middleware(Failures)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    if settings.api_key is not None:
        app.add_middleware(Keys, key=settings.api_key)
    app.add_middleware(RequestCounts, metrics=metrics, endpoints=endpoints)
    app.add_middleware(RequestIds)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return app


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


def _add_openai(app: FastAPI) -> None:
    @app.get("/v1/models")
    @app.get("/v1/models/")
    async def models(request: Request) -> dict[str, Any]:
        served = await _serving(request).models()
        return {"object": "list", "data": [served.described(model) for model in served.models]}

    @app.get("/v1/models/{name}")
    async def model(name: str, request: Request) -> dict[str, Any]:
        served = await _serving(request).models()
        return served.described(served.named(name))

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        with _serving(request).under_way.one():
            return await _serving(request).chat(await read_body(ChatRequest, request), request)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        with _serving(request).under_way.one():
            body = await read_body(CompletionRequest, request)
            return await _serving(request).completion(body, request)


def _add_tokenizer(app: FastAPI) -> None:
    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        return await _serving(request).tokenize(await read_body(TokenizeRequest, request))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        return await _serving(request).detokenize(await read_body(DetokenizeRequest, request))

    @app.get("/tokenizer_info")
    async def tokenizer_info(request: Request) -> dict[str, Any]:
        return _serving(request).tokenizer.described


def _add_operations(app: FastAPI) -> None:
    @app.get("/")
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    @app.api_route("/ping", methods=["GET", "POST"])
    async def ping(request: Request) -> Response:
        ready = await _serving(request).ready()
        return Response(status_code=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    @app.get("/health")
    @app.get("/health/ready")
    async def health(request: Request) -> Response:
        ready = await _serving(request).ready()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": "ready" if ready else "not ready"}, status)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        return Response(_serving(request).metrics.text(), media_type=CONTENT_TYPE)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def not_served(request: Request, error: HTTPException) -> Response:
        path = quoted(request.url.path)
        message = f"{request.method} {path}: {error.detail}"
        code = HTTP_CODES.get(error.status_code)
        response = ApiError(error.status_code, message, code=code).response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
