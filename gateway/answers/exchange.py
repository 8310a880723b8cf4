"""Turns the chunks of one request's answers into its HTTP response."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from starlette.responses import Response

from tandem.gateway.answers.generation import Numbered
from tandem.gateway.answers.state import AnswerState
from tandem.gateway.answers.stream import DONE, event
from tandem.gateway.answers.writer import Writer
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.protocol.requests import GenerationRequest
from tandem.gateway.tasks import aside
from tandem.gateway.triton.backend import ResponseChunk, without_tokens


class Exchange:
    """One request and its answers."""

    def __init__(
        self,
        body: GenerationRequest,
        answers: list[AnswerState],
        writer: Writer,
        metrics: GatewayMetrics,
    ) -> None:
        self._body = body
        self._answers = answers
        self._writer = writer
        self._metrics = metrics
        self._began = time.perf_counter()

    async def whole(self, chunks: AsyncGenerator[Numbered, None]) -> Response:
        size = 0
        async with aclosing(self._counted(chunks)) as counted:
            async for number, chunk in counted:
                answer = self._answers[number]
                size += chunk.size
                answer.additions.append(await aside(chunk.size, partial(answer.addition, chunk)))
        written = await aside(size, lambda: self._writer.whole().json_bytes())
        return Response(written, media_type="application/json")

    async def events(self, chunks: AsyncGenerator[Numbered, None]) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._counted(chunks)) as counted:
            async for number, chunk in counted:
                yield event(await aside(chunk.size, partial(self._written, number, chunk)))
        if self._body.streams_usage:
            yield event(self._writer.end().json_bytes())
        yield DONE

    def _written(self, number: int, chunk: ResponseChunk) -> bytes:
        addition = self._answers[number].addition(chunk)
        return self._writer.chunk(number, addition).json_bytes()

    async def _counted(
        self, chunks: AsyncGenerator[Numbered, None]
    ) -> AsyncGenerator[Numbered, None]:
        """Yield the same chunks and count them, also if the request is cut short."""
        metrics = self._metrics
        metrics.running.inc()
        first = True
        try:
            async with aclosing(chunks) as closing:
                async for number, given in closing:
                    chunk = without_tokens(given) if self._body.limit == 0 else given
                    self._answers[number].add(chunk)
                    if first and self._body.stream:
                        metrics.first_token.observe(time.perf_counter() - self._began)
                    first = False
                    yield number, chunk
            metrics.latency.observe(time.perf_counter() - self._began)
        finally:
            metrics.running.dec()
            if not first:  # a request that was rejected has no usage
                usage = self._writer.usage
                metrics.prompt_tokens.inc(usage.prompt_tokens)
                metrics.generation_tokens.inc(usage.completion_tokens)
                metrics.count(self._writer.metrics.speculative_decoding)
