"""The answers that one request asks for: made side by side, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from tandem.gateway.triton import Backend, Inputs, ResponseChunk

Numbered: TypeAlias = tuple[int, ResponseChunk]


async def generate(
    engine: Backend, model: str, requests: Sequence[Inputs], *, most_at_once: int
) -> AsyncGenerator[Numbered, None]:
    """Yield the chunks of all answers as they come, each with its answer's number.

    Closing the iterator cancels what is left; so does the first error, which is raised. Nothing is
    read ahead of a slow reader but one chunk an answer.
    """
    if len(requests) == 1:
        async with aclosing(engine.generate(model, requests[0])) as chunks:
            async for chunk in chunks:
                yield 0, chunk
        return
    arrived: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=1)
    room = asyncio.Semaphore(most_at_once)

    async def answer(number: int) -> None:
        try:
            async with room, aclosing(engine.generate(model, requests[number])) as chunks:
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
