"""Each request for text is a span, with the client's trace and the conventions' attributes."""

import asyncio
import queue

import httpx2
import pytest
from http_server import http_server, send
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_triton import statistics

from tandem.gateway import app as gateway
from tandem.gateway.server import listen, serving
from tandem.gateway.triton.backend import ResponseChunk

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("event_loop_of_all")]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def spans(monkeypatch):
    """A function that returns the spans of all gateways in the test, by name."""
    exporter, create = InMemorySpanExporter(), gateway.create_app
    processor = SimpleSpanProcessor(exporter)
    monkeypatch.setattr(
        gateway, "create_app", lambda *given, **more: create(*given, spans=processor, **more)
    )
    return lambda: {span.name: span for span in exporter.get_finished_spans()}


@pytest.fixture
def answer(triton):
    """Let Triton write two tokens after 10 ns in the queue and 20 ns for the prompt."""
    end = statistics(1, 1, cached=3) | {
        "num_rounds": 2,
        "draft_acceptance_rate": 0.25,
        "draft_seconds": 0.5,
        "target_seconds": 1.5,
        **dict(zip(TIMES, (1000, 1010, 1030, 1070), strict=True)),
    }
    triton.script = lambda _: [ResponseChunk("hi", [5, 6, 7, 8], 2, 8, 2, "stop", end)]


@pytest.mark.usefixtures("answer")
async def test_a_span_continues_the_clients_trace_and_has_children(post, spans):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    await post(CHATS, CHAT | {"seed": 3, "max_tokens": 9}, headers=headers)
    found = spans()
    root = found.pop("chat bls_stream")
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == PARENT
    assert root.attributes.items() >= {
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "tandem"),
        ("gen_ai.response.model", "bls_stream"),
        ("gen_ai.request.seed", 3),
        ("gen_ai.request.max_tokens", 9),
        ("gen_ai.response.finish_reasons", ("stop",)),
        ("gen_ai.usage.output_tokens", 4),
        ("gen_ai.usage.cache_read.input_tokens", 3),
        ("http.response.status_code", 200),
    }
    times = {name: (span.start_time, span.end_time) for name, span in found.items()}
    assert times == {"queue": (1000, 1010), "prompt": (1010, 1030), "decoding": (1030, 1070)}
    assert {span.parent.span_id for span in found.values()} == {root.context.span_id}
    decoding = found["decoding"].attributes
    assert (decoding["tandem.tokens_per_round"], decoding["tandem.acceptance_rate"]) == (2, 0.25)


@pytest.mark.usefixtures("answer")
async def test_streams_and_several_choices_have_one_span(post, spans):
    await post(COMPLETIONS, {"prompt": "hi", "n": 2, "stream": True})
    root = spans()["text_completion bls_stream"]
    assert root.attributes["gen_ai.request.stream"]
    assert root.attributes["gen_ai.usage.output_tokens"] == 8


@pytest.mark.usefixtures("answer")
async def test_a_seed_of_64_bits_is_an_attribute_that_can_be_exported(post, spans):
    await post(CHATS, CHAT | {"seed": 2**64 - 1})
    assert spans()["chat bls_stream"].attributes["gen_ai.request.seed"] == -1


async def test_a_rejected_request_is_an_error(post, spans):
    await post(COMPLETIONS, {"prompt": "hi", "n": 0})
    root = spans()["text_completion"]
    assert root.attributes["error.type"] == "400"
    assert not root.status.is_ok


@pytest.mark.usefixtures("answer", "spans")
@pytest.mark.parametrize("headers", [{"traceparent": "x" * 999}, {"tracestate": "a==,b"}])
async def test_clients_cannot_fill_the_log_with_invalid_headers(app, caplog, headers):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"} | headers
    with listen("127.0.0.1", 0) as bound, serving(app(), bound):
        url = f"http://127.0.0.1:{bound.getsockname()[1]}{CHATS}"
        async with httpx2.AsyncClient() as client:
            for _ in range(9):
                await client.post(url, json=CHAT, headers=headers)
    assert len(caplog.records) <= 1


async def test_other_paths_have_no_span(client, spans):
    async with client() as opened:
        await opened.get("/v1/models")
    assert spans() == {}


@pytest.mark.usefixtures("answer")
async def test_spans_are_sent_to_the_collector(post, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    received = queue.Queue()

    def answer_export(request):
        received.put(request.path)
        send(request, 200)

    with http_server(answer_export) as port:
        await post(CHATS, CHAT, traces_url=f"http://127.0.0.1:{port}/v1/traces")
        assert await asyncio.to_thread(received.get, timeout=30) == "/v1/traces"


async def test_by_default_nothing_is_traced(app):
    assert "TracingMiddleware" not in {
        middleware.cls.__name__ for middleware in app().user_middleware
    }
