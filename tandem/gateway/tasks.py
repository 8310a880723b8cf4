"""Run a request's work without delaying others, and cancel it when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from starlette.types import Receive

from tandem.gateway.errors import ClientGone

Result = TypeVar("Result")

LONG = 20_000  # characters of text, or work that takes equally long


async def offload(
    length: int, work: Callable[[], Result], threads: Executor | None = None
) -> Result:
    """Run `work`, on a thread if `length` is large, because all streams share the event loop."""
    if length <= LONG:
        return work()
    return await asyncio.get_running_loop().run_in_executor(threads, work)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`; cancel `work` and raise ClientGone if the client disconnects.

    receive: the ASGI channel of a request whose body has been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
