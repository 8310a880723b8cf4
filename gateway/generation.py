"""The answers that one request asks for: made side by side, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from tandem.contract import entry as tensors
from tandem.contract.errors import ErrorClass
from tandem.contract.tensor import Tensor
from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.guides import AskedGuide
from tandem.gateway.triton.backend import Backend, Inputs, ResponseChunk

Numbered: TypeAlias = tuple[int, ResponseChunk]
INVALID_GUIDE: ErrorClass = "invalid_guide"


async def generate(
    engine: Backend,
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


async def naming_field(
    guide: AskedGuide, chunks: AsyncGenerator[Numbered, None]
) -> AsyncGenerator[Numbered, None]:
    """Yield the same chunks; where the guide is at fault, say so of the field that asked for it."""
    try:
        async with aclosing(chunks) as closing:
            async for chunk in closing:
                yield chunk
    except ApiError as error:
        if error.code != INVALID_GUIDE:
            raise
        told = error.message.removeprefix(f"input '{tensors.GUIDED_DECODING_GUIDE}': ")
        field, reason = guide.blamed(told)
        raise bad_request(f"{field}: {reason}", param=field, code=INVALID_GUIDE) from error
