"""One request's answers: made side by side, cancelled together, sent whole or as events."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.responses import Response

from tandem.contract.errors import ErrorClass
from tandem.contract.tensor import Tensor
from tandem.gateway.answers.state import AnswerState
from tandem.gateway.answers.writer import Writer
from tandem.gateway.errors import ApiError, api_error, bad_request
from tandem.gateway.guides.structured_outputs import AskedGuide
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.protocol.requests import GenerationRequest
from tandem.gateway.tasks import UnderWay, aside
from tandem.gateway.triton.backend import Inputs, ResponseChunk, Triton, without_tokens

Numbered: TypeAlias = tuple[int, ResponseChunk]
INVALID_GUIDE: ErrorClass = "invalid_guide"
# The library cuts streams off, without a word, as soon as the process is asked to end. UnderWay
# gives them time, and a last event.
AppStatus.enable_automatic_graceful_drain = False

DONE = b"data: [DONE]\n\n"
SECONDS_BETWEEN_PINGS = 15
# A client that takes nothing for so long has gone, whatever its connection says.
SECONDS_TO_SEND = 120.0


async def generate(
    engine: Triton,
    model: str,
    requests: Sequence[Inputs],
    extras: Sequence[Tensor] = (),
    *,
    most_at_once: int,
) -> AsyncGenerator[Numbered, None]:
    """Yield the chunks of all answers as they come, each with its answer's number.

    Closing the iterator cancels what is left; so does the first error, which is raised. Nothing is
    read ahead of a slow reader but one chunk an answer. extras: outputs that are wanted of each.
    """
    if len(requests) == 1:
        async with aclosing(engine.generate(model, requests[0], extras)) as chunks:
            async for chunk in chunks:
                yield 0, chunk
        return
    arrived: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=1)
    room = asyncio.Semaphore(most_at_once)

    async def answer(number: int) -> None:
        try:
            stream = engine.generate(model, requests[number], extras)
            async with room, aclosing(stream) as chunks:
                async for chunk in chunks:
                    await arrived.put((number, chunk))
            await arrived.put(None)
        except Exception as error:  # noqa: BLE001  raised where the chunks are read
            await arrived.put(error)

    tasks = [asyncio.create_task(answer(number)) for number in range(len(requests))]
    try:
        unfinished = len(tasks)
        while unfinished:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                unfinished -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def naming_fields(
    fields: Mapping[str, str], guide: AskedGuide | None, chunks: AsyncGenerator[Numbered, None]
) -> AsyncGenerator[Numbered, None]:
    """Yield the same chunks; where the request is at fault, name the field that the client sent.

    fields: by the names of the entries' inputs.
    """
    try:
        async with aclosing(chunks) as closing:
            async for chunk in closing:
                yield chunk
    except ApiError as error:
        if error.status != HTTPStatus.BAD_REQUEST:
            raise
        field, message = _named(error.message, fields)
        if guide is not None and error.code == INVALID_GUIDE:
            field, reason = guide.blamed(message.removeprefix(f"{guide.field}: "))
            message = f"{field}: {reason}"
        raise bad_request(message, param=field, code=error.code) from error


def _named(message: str, fields: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the field that an entry complains of, and its line with the names of fields.

    >>> _named("input 'stop_words': 300 words given", {"stop_words": "stop"})
    ('stop', 'stop: 300 words given')
    """

    def named(found: re.Match[str]) -> str:
        return fields.get(found[1], found[0])

    suspects = re.findall(r"(?:^|: )(?:inputs? ')?(\w+)", message)
    field = next((fields[name] for name in suspects if name in fields), None)
    return field, re.sub(r"(?:\binputs? )?'(\w+)'", named, message)


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


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def begun(
    events: AsyncGenerator[bytes, None], under_way: UnderWay
) -> AsyncGenerator[bytes, None]:
    """Return the same events, the first of which has come; raise what comes instead of it."""
    first = await anext(events)
    return _after(first, events, under_way)


async def _after(
    first: bytes, events: AsyncGenerator[bytes, None], under_way: UnderWay
) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        while True:
            with under_way.one():  # not while a client takes its time: the library would be hit
                more = await anext(events, None)
            if more is None:
                return
            yield more
    except Exception as error:  # noqa: BLE001  the status was said already: only an event is left
        yield event(json.dumps(api_error(error).body).encode())
        yield DONE
    finally:
        await events.aclose()


def stream_response(events: AsyncGenerator[bytes, None]) -> EventSourceResponse:
    return EventSourceResponse(
        events, ping=SECONDS_BETWEEN_PINGS, sep="\n", send_timeout=SECONDS_TO_SEND
    )
