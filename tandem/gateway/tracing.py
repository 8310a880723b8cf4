"""Traces requests with OpenTelemetry. Imported only if the gateway exports traces."""

from __future__ import annotations

import os
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.gateway.answers.answer import ParsedAnswer
from tandem.gateway.answers.writer import Writer
from tandem.gateway.errors import CLIENT_CLOSED_REQUEST, MESSAGES_PATH
from tandem.gateway.models import VERSION

OPERATIONS = {  # names of OpenTelemetry's conventions for generative AI, by path
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    MESSAGES_PATH: "chat",
}
PROPAGATOR = TraceContextTextMapPropagator()
PHASES = {  # child spans, and the times of the loop between which they last
    "queue": ("arrival_time_ns", "first_scheduled_time_ns"),
    "prompt": ("first_scheduled_time_ns", "first_token_time_ns"),
    "decoding": ("first_token_time_ns", "last_token_time_ns"),
}


def export_to(url: str) -> SpanProcessor:
    """Return a processor that sends spans to a collector. url: its endpoint for OTLP over HTTP."""
    return BatchSpanProcessor(OTLPSpanExporter(endpoint=url))


class TracingMiddleware:
    """ASGI middleware that makes a span of each request for text.

    The answers' times and statistics come with their last chunks, so all attributes and child spans
    are added at the end. A `traceparent` header makes the span part of the client's trace.
    """

    def __init__(self, app: ASGIApp, *, processor: SpanProcessor) -> None:
        self._app = app
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "tandem"}
        provider = TracerProvider(resource=Resource.create(named))
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("tandem.gateway", VERSION)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = OPERATIONS.get(scope.get("path", ""))
        if scope["type"] != "http" or operation is None:
            await self._app(scope, receive, send)
            return
        parent = PROPAGATOR.extract(Headers(scope=scope))
        span = self._tracer.start_span(operation, context=parent, kind=SpanKind.SERVER)
        status = CLIENT_CLOSED_REQUEST

        async def send_wrapper(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, send_wrapper)
        finally:
            self._describe(span, operation, scope.get("writer"))
            span.set_attribute("http.response.status_code", status)
            if status >= 400:
                span.set_attribute("error.type", str(status))
                span.set_status(StatusCode.ERROR)
            span.end()

    def _describe(self, span: Span, operation: str, writer: Writer | None) -> None:
        """Add attributes and children. writer: of the response; None: the request was rejected."""
        span.set_attributes({"gen_ai.operation.name": operation, "gen_ai.provider.name": "tandem"})
        if writer is None:
            return
        span.update_name(f"{operation} {writer.model}")
        body, usage = writer.body, writer.usage
        given = {
            "gen_ai.request.model": body.model,
            "gen_ai.request.stream": body.stream,
            "gen_ai.request.max_tokens": body.limit,
            "gen_ai.request.temperature": body.temperature,
            "gen_ai.request.top_p": body.top_p,
            "gen_ai.request.top_k": body.top_k or None,
            "gen_ai.request.seed": _in_int64(body.seed),
            "gen_ai.request.presence_penalty": body.presence_penalty,
            "gen_ai.request.frequency_penalty": body.frequency_penalty,
            "gen_ai.request.stop_sequences": body.stop or None,
            "gen_ai.request.choice.count": body.n if body.n > 1 else None,
            "gen_ai.response.model": writer.model,
            "gen_ai.response.finish_reasons": [a.finish_reason or "error" for a in writer.answers],
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
            "gen_ai.usage.cache_read.input_tokens": usage.get("prompt_tokens_details", {}).get(
                "cached_tokens"
            ),
        }
        span.set_attributes({name: value for name, value in given.items() if value is not None})
        if not all(answer.statistics for answer in writer.answers):
            span.set_status(StatusCode.ERROR, "an answer is incomplete")
        for answer in writer.answers:
            if answer.statistics:
                self._add_phases(span, answer)

    def _add_phases(self, span: Span, answer: ParsedAnswer) -> None:
        """Add the children of one answer, with times of the loop's clock."""
        statistics, context = answer.statistics, set_span_in_context(span)
        for name, (start, end) in PHASES.items():
            began, ended = statistics[start], statistics[end]
            if began and ended:  # 0: not reached
                child = self._tracer.start_span(name, context=context, start_time=began)
                if name == "decoding":
                    child.set_attributes(_decoding_attributes(answer))
                child.end(max(began, ended))


def _in_int64(seed: int | None) -> int | None:
    """Return the seed with the same 64 bits that an attribute can hold, as it is signed."""
    return None if seed is None else (seed + 2**63) % 2**64 - 2**63


def _decoding_attributes(answer: ParsedAnswer) -> dict[str, Any]:
    statistics = answer.statistics
    return {
        "tandem.rounds": statistics["num_rounds"],
        "tandem.tokens_per_round": len(answer.ids) / max(1, statistics["num_rounds"]),
        "tandem.draft_tokens": statistics["num_draft_tokens"],
        "tandem.accepted_draft_tokens": statistics["num_accepted_draft_tokens"],
        "tandem.acceptance_rate": statistics["draft_acceptance_rate"],
        "tandem.draft_seconds": statistics["draft_seconds"],
        "tandem.target_seconds": statistics["target_seconds"],
    }
