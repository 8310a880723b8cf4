"""The answers that one request asks for: made side by side, cancelled together."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import TypeAlias

from tandem.contract.errors import ErrorClass
from tandem.contract.tensor import Tensor
from tandem.gateway.errors import ApiError, bad_request
from tandem.gateway.guides.structured_outputs import AskedGuide
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
