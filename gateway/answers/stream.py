"""Server-sent events: an answer while it grows."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus

from tandem.gateway.errors import api_error
from tandem.gateway.tasks import UnderWay

# The library cuts streams off, without a word, as soon as the process is asked to end. UnderWay
# gives them time, and a last event.
AppStatus.enable_automatic_graceful_drain = False

DONE = b"data: [DONE]\n\n"
SECONDS_BETWEEN_PINGS = 15
# A client that takes nothing for so long has gone, whatever its connection says.
SECONDS_TO_SEND = 120.0


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
