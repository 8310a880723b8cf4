"""One request and its answers: chunks come in, what the client reads goes out."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response

from tandem.gateway.answers import AnswerState
from tandem.gateway.generation import Numbered
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.schema import GenerationRequest, TokenDetail
from tandem.gateway.speculation import TokenOrigins
from tandem.gateway.stream import DONE, event
from tandem.gateway.triton import ResponseChunk
from tandem.gateway.writer import Writer


class Exchange:
    """Turns the chunks of a request into its answer.

    origins: of the tokens of each answer, where the client asks for them.
    """

    def __init__(
        self,
        body: GenerationRequest,
        answers: list[AnswerState],
        writer: Writer,
        metrics: GatewayMetrics,
        origins: list[TokenOrigins] | None,
    ) -> None:
        self._body = body
        self._answers = answers
        self._writer = writer
        self._metrics = metrics
        self._origins = origins
        self._began = time.perf_counter()

    async def whole(self, chunks: AsyncGenerator[Numbered, None]) -> Response:
        """Return the complete answers."""
        async with aclosing(self._counted(chunks)) as counted:
            async for number, chunk in counted:
                answer = self._answers[number]
                answer.text += chunk.text
                answer.details += self._details(number, chunk) or []
        return Response(self._writer.whole().json_bytes(), media_type="application/json")

    async def events(self, chunks: AsyncGenerator[Numbered, None]) -> AsyncGenerator[bytes, None]:
        """Yield the answers as events while they grow."""
        body = self._body
        begun: set[int] = set()
        async with aclosing(self._counted(chunks)) as counted:
            async for number, chunk in counted:
                written = self._writer.chunk(
                    number,
                    chunk,
                    first=number not in begun,
                    details=self._details(number, chunk),
                    with_usage=body.streams_usage_always,
                )
                begun.add(number)
                yield event(written.json_bytes())
        if body.streams_usage:
            yield event(self._writer.end().json_bytes())
        yield DONE

    def _details(self, number: int, chunk: ResponseChunk) -> list[TokenDetail] | None:
        return None if self._origins is None else self._origins[number].details(chunk)

    async def _counted(
        self, chunks: AsyncGenerator[Numbered, None]
    ) -> AsyncGenerator[Numbered, None]:
        """Keep the statistics of what passes, also of a request that is cut short."""
        metrics = self._metrics
        metrics.running.add(1)
        first = True
        try:
            async with aclosing(chunks) as closing:
                async for number, chunk in closing:
                    self._answers[number].add(chunk)
                    if first and self._body.stream:
                        metrics.first_token.observe(time.perf_counter() - self._began)
                    first = False
                    yield number, chunk
            metrics.latency.observe(time.perf_counter() - self._began)
        finally:
            metrics.running.add(-1)
            if not first:  # nothing was made of a request that was refused
                usage = self._writer.usage
                metrics.prompt_tokens.add(usage.prompt_tokens)
                metrics.generation_tokens.add(usage.completion_tokens)
                metrics.count(self._writer.metrics.speculative_decoding)
