"""Generate all answers to one request, concurrently. They are cancelled together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeAlias

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.responses import Response

from tandem.contract.tensor import Tensor
from tandem.gateway.answers.writer import Writer
from tandem.gateway.errors import ApiError, as_api_error
from tandem.gateway.metrics import GatewayMetrics
from tandem.gateway.protocol.structured_outputs import RequestedGuide
from tandem.gateway.tasks import offload
from tandem.gateway.triton.backend import Inputs, ResponseChunk, Triton, without_tokens
from tandem.gateway.triton.inputs import client_error

Numbered: TypeAlias = tuple[int, ResponseChunk]
# By default, sse-starlette ends streams without an event as soon as the process is asked to stop.
# With False, they get time to finish, then the error of `Triton.stop`.
AppStatus.enable_automatic_graceful_drain = False

SECONDS_BETWEEN_PINGS = 15
SECONDS_TO_SEND = 120.0  # a client that reads nothing for this long is disconnected


async def generate(
    engine: Triton,
    model: str,
    requests: Sequence[Inputs],
    extras: Sequence[Tensor],
    *,
    max_concurrency: int,
) -> AsyncGenerator[Numbered, None]:
    """Yield the chunks of all answers as they arrive, as (answer number, chunk).

    Closing the iterator cancels the remaining answers. The first error also cancels them and is
    raised. extras: optional outputs to request.
    """
    if len(requests) == 1:
        async with aclosing(engine.generate(model, requests[0], extras)) as chunks:
            async for chunk in chunks:
                yield 0, chunk
        return
    arrived: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=1)
    slots = asyncio.Semaphore(max_concurrency)

    async def answer(number: int) -> None:
        try:
            stream = engine.generate(model, requests[number], extras)
            async with slots, aclosing(stream) as chunks:
                async for chunk in chunks:
                    await arrived.put((number, chunk))
            await arrived.put(None)
        except Exception as error:  # noqa: BLE001 reraised in the reader
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


async def read_answers(
    chunks: AsyncGenerator[Numbered, None],
    writer: Writer,
    metrics: GatewayMetrics,
    guide: RequestedGuide | None,
) -> AsyncGenerator[int, None]:
    """Add each chunk to its answer, and yield the answer's number.

    The request is counted, even if it is interrupted. Errors get the names of the fields that the
    client sent.
    """
    body, began, first = writer.body, time.perf_counter(), True
    metrics.running.inc()
    try:
        async with aclosing(chunks):
            async for number, given in chunks:
                chunk = without_tokens(given) if body.limit == 0 else given
                await offload(chunk.size, partial(writer.answers[number].add, chunk))
                if first and body.stream:
                    metrics.first_token.observe(time.perf_counter() - began)
                first = False
                yield number
        metrics.latency.observe(time.perf_counter() - began)
    except ApiError as error:
        raise client_error(error, request=body, guide=guide) from error
    finally:
        metrics.running.dec()
        if not first:  # a rejected request has no usage
            usage = writer.usage
            metrics.prompt_tokens.inc(usage["prompt_tokens"])
            metrics.generation_tokens.inc(usage["completion_tokens"])
            metrics.count(writer.speculation)


async def write_response(numbers: AsyncGenerator[int, None], writer: Writer) -> Response:
    """Return the response.

    numbers: for each chunk, the number of its answer. A stream is returned after its first chunk,
    so that an earlier error gets its own status.
    """
    if not writer.body.stream:
        async for _ in numbers:
            pass
        size = sum(answer.chunk.size for answer in writer.answers)
        return Response(await offload(size, writer.whole), media_type="application/json")
    return EventSourceResponse(
        _events(await anext(numbers, None), numbers, writer),
        ping=SECONDS_BETWEEN_PINGS,
        sep="\n",
        send_timeout=SECONDS_TO_SEND,
    )


async def _events(
    number: int | None, numbers: AsyncGenerator[int, None], writer: Writer
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream. After an error, yield its event.

    number: the answer of the first chunk; None: there are no chunks.
    """
    try:
        async with aclosing(numbers):
            while number is not None:
                size = writer.answers[number].chunk.size
                yield await offload(size, partial(writer.chunk, number))
                number = await anext(numbers, None)
            yield writer.end()
    except Exception as error:  # noqa: BLE001 the status has been sent already
        yield writer.failure(as_api_error(error))
