"""A gateway in the test process, with a scripted Triton."""

import http.client
import json
import shutil
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import cache

import httpx2
import openai
import pytest
from paths import TOKENIZER
from scripted_triton import ScriptedTriton, statistics

from tandem.gateway import app as gateway
from tandem.gateway.server import listen, serving
from tandem.gateway.settings import GatewaySettings
from tandem.gateway.tokenizer import ChatTokenizer
from tandem.gateway.triton.backend import ResponseChunk

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {CHATS: {"messages": [{"role": "user", "content": "hi"}]}, COMPLETIONS: {"prompt": "hi"}}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def event_loop_of_all(anyio_backend):
    """Share one event loop among all tests, because grpc.aio has one event queue for all loops.

    If each test had its own loop, events from a closed loop would make the next test fail.
    """
    yield  # noqa: PT022  the loop exists as long as this fixture


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    """The demo's tokenizer, with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer") / "demo"
    shutil.copytree(TOKENIZER, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def triton():
    return ScriptedTriton()


@pytest.fixture
def settings(tokenizer_folder):
    """A function that returns the settings of a gateway."""
    return lambda **given: GatewaySettings(url="", **{"tokenizer": tokenizer_folder} | given)


loaded_tokenizer = cache(ChatTokenizer)


@pytest.fixture
def app(triton, settings, monkeypatch):
    """A function that returns a gateway application. All applications share their tokenizers."""
    monkeypatch.setattr(gateway, "ChatTokenizer", loaded_tokenizer)
    return lambda **given: gateway.create_app(settings(**given), connect=lambda _: triton)


@pytest.fixture
def client(app):
    """A function that returns a context with an HTTP client of an application."""

    @asynccontextmanager
    async def opened(**given):
        made = app(**given)
        transport = httpx2.ASGITransport(made, raise_app_exceptions=False)
        async with (
            made.router.lifespan_context(made),
            httpx2.AsyncClient(transport=transport, base_url="http://gateway") as opened_client,
        ):
            yield opened_client

    return opened


@pytest.fixture
def post(client):
    """A function that sends one body and returns the response."""

    async def send(path, body, headers=None, **given):
        async with client(**given) as opened:
            return await opened.post(path, json=body, headers=headers)

    return send


@pytest.fixture
def rejected(post):
    """A function that sends a body, by default for a completion, and returns the error."""

    async def send(path=COMPLETIONS, **body):
        return error_of(await post(path, BODIES[path] | body))

    return send


@pytest.fixture
def chat(post, writes):
    """A function that requests a chat from a model that writes given chunks."""

    async def ask(*chunks, template, finish_reason="stop", **given):
        writes(*chunks, finish_reason=finish_reason)
        return await post(CHATS, BODIES[CHATS] | given, chat_template=template)

    return ask


@pytest.fixture
def writes(triton, monkeypatch):
    """A function that sets the chunks that the model writes. Long prompts are allowed."""
    long = property(lambda _: 10**6)
    monkeypatch.setattr("tandem.gateway.models.ServedModels.max_model_len", long)

    def script(*chunks, finish_reason="stop", **figures):
        *first, last = chunks or ("",)
        end = statistics(0, cached=1) | figures
        triton.script = lambda _: [
            *(ResponseChunk(text, [5], 1, 4, 1) for text in first),
            ResponseChunk(last, [6], 1, 4, 1, finish_reason, end),
        ]

    return script


@pytest.fixture
def threads_of(monkeypatch):
    """Return a function that records in a list the threads that call a given function."""

    def record(owner, name):
        threads, original = [], getattr(owner, name)

        def recording(*args, **kwargs):
            threads.append(threading.current_thread())
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, recording)
        return threads

    return record


@pytest.fixture
def openai_client(app):
    """A function that returns a context with OpenAI's client of an application."""

    @contextmanager
    def opened(**given):
        with listen("127.0.0.1", 0) as bound, serving(app(**given), bound):
            url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
            with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as opened_client:
                yield opened_client

    return opened


@contextmanager
def request(port, **body):
    """Send a request for a completion over a connection, which is closed at the end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "hi"} | body), headers)
    try:
        yield connection
    finally:
        if connection.sock:
            connection.sock.close()
        connection.close()


def error_of(response):
    """Return the error of a rejected request."""
    assert response.status_code == 400, response.text
    return response.json()["error"]


def events(response):
    """Return the objects of a stream, and check that the stream is complete."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def named_events(response):
    """Return the objects of a stream of named events, and check that the names are their types."""
    found = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
