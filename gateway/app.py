"""The application: its endpoints, middleware and error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from tandem.gateway.answers.adapted_writer import AdaptedWriter
from tandem.gateway.answers.message_writer import MessageWriter
from tandem.gateway.answers.response_writer import ResponseWriter
from tandem.gateway.errors import (
    CLIENT_CLOSED_REQUEST,
    HTTP_CODES,
    MESSAGES_PATH,
    ApiError,
    ClientGone,
)
from tandem.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from tandem.gateway.middleware import BodyLimit, Keys, Requests
from tandem.gateway.models import VERSION
from tandem.gateway.protocol.adapted import AdaptedRequest
from tandem.gateway.protocol.body import read_body
from tandem.gateway.protocol.fields import quoted
from tandem.gateway.protocol.message_requests import CountRequest, MessageRequest
from tandem.gateway.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tandem.gateway.protocol.response_requests import ResponseRequest
from tandem.gateway.serving import Serving
from tandem.gateway.settings import GatewaySettings
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.triton.backend import Triton

PAGE = Path(__file__).parent / "page"
# The page only calls its own gateway, and other sites can't frame it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}
GET = ["GET", "HEAD"]  # the server omits the body for HEAD

router = APIRouter()


def create_app(settings: GatewaySettings, connect: Callable[[str], Triton] = Triton) -> FastAPI:
    """Return the gateway as an ASGI application.

    connect: makes the connection to Triton, inside the event loop. Raises errors from loading the
    tokenizer and the chat template.
    """
    tokenizer = ChatTokenizer(settings.tokenizer, settings.chat_template)
    metrics = GatewayMetrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = connect(settings.url)
        app.state.serving = Serving(engine, tokenizer, metrics, open_objects=settings.open_objects)
        try:
            yield
        finally:
            await engine.close()

    app = FastAPI(
        title="Tandem",
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={ApiError: _rejected, HTTPException: _not_served, ClientGone: _gone},
    )
    app.include_router(router)
    app.mount("/page", StaticFiles(directory=PAGE))
    # The middleware added last handles a request first.
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    if settings.api_key is not None:
        app.add_middleware(Keys, key=settings.api_key)
    endpoints = frozenset(route.path for route in router.routes)  # type: ignore[attr-defined]
    app.add_middleware(Requests, metrics=metrics, endpoints=endpoints)
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


@router.api_route("/v1/models", methods=GET)
@router.api_route("/v1/models/", methods=GET)
async def models(request: Request) -> dict[str, Any]:
    served = await _serving(request).models()
    return {"object": "list", "data": [served.describe(model) for model in served.models]}


@router.api_route("/v1/models/{name:path}", methods=GET)
async def model(name: str, request: Request) -> dict[str, Any]:
    served = await _serving(request).models()
    return served.describe(served.find(name))


@router.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    serving = _serving(request)
    with serving.running_requests.track():
        return await serving.chat(await read_body(ChatRequest, request), request)


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    serving = _serving(request)
    with serving.running_requests.track():
        return await serving.completion(await read_body(CompletionRequest, request), request)


@router.post("/v1/responses")
async def responses(request: Request) -> Response:
    return await _adapted(ResponseRequest, ResponseWriter, request)


@router.post(MESSAGES_PATH)
async def messages(request: Request) -> Response:
    return await _adapted(MessageRequest, MessageWriter, request)


@router.post(f"{MESSAGES_PATH}/count_tokens")
async def count_tokens(request: Request) -> dict[str, int]:
    body = await read_body(CountRequest, request)
    serving = _serving(request)
    ids = await serving.chat_ids(body.chat, await serving.models(), request)
    return {"input_tokens": len(ids)}


async def _adapted(
    kind: type[AdaptedRequest], writer: type[AdaptedWriter[Any]], request: Request
) -> Response:
    """Answer a request of another API as a chat, using that API's names and objects."""
    serving = _serving(request)
    with serving.running_requests.track():
        body = await read_body(kind, request)
        try:
            return await serving.chat(body.chat, request, writer=partial(writer, body))
        except ApiError as error:
            raise body.renamed(error) from error


@router.post("/tokenize")
async def tokenize(request: Request) -> dict[str, Any]:
    return await _serving(request).tokenize(await read_body(TokenizeRequest, request), request)


@router.post("/detokenize")
async def detokenize(request: Request) -> dict[str, Any]:
    return await _serving(request).detokenize(await read_body(DetokenizeRequest, request))


@router.api_route("/tokenizer_info", methods=GET)
async def tokenizer_info(request: Request) -> dict[str, Any]:
    return _serving(request).tokenizer.info


@router.api_route("/", methods=GET)
async def page() -> Response:
    return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)


@router.api_route("/version", methods=GET)
async def version() -> dict[str, str]:
    return {"version": VERSION}


@router.api_route("/ping", methods=[*GET, "POST"])
async def ping(request: Request) -> Response:
    ready = await _serving(request).engine.ready()
    return Response(status_code=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)


@router.api_route("/health", methods=GET)
@router.api_route("/health/ready", methods=GET)
async def health(request: Request) -> Response:
    ready = await _serving(request).engine.ready()
    status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({"status": "ready" if ready else "not ready"}, status)


@router.api_route("/metrics", methods=GET)
async def prometheus_metrics(request: Request) -> Response:
    return Response(_serving(request).metrics.text(), media_type=CONTENT_TYPE)


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.url.path)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {quoted(request.url.path)}: {error.detail}"
    code = HTTP_CODES.get(error.status_code)
    response = ApiError(error.status_code, message, code=code).response(request.url.path)
    response.headers.update(error.headers or {})
    return response


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
