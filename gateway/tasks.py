"""Run a request's work until the client disconnects or the gateway stops."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.types import Receive

from tandem.gateway.errors import ApiError, ClientGone

Result = TypeVar("Result")

LONG = 20_000  # characters of text, or work that takes equally long


async def offload(length: int, work: Callable[[], Result]) -> Result:
    """Run `work`, on a thread if `length` is large, because all streams share the event loop."""
    return await asyncio.to_thread(work) if length > LONG else work()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`; cancel `work` and raise ClientGone if the client disconnects.

    receive: the ASGI channel of a request whose body has been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class RunningRequests:
    """Tasks that serve requests. When the gateway stops, they end with an error.

    All tasks run in one event loop.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False

    @contextmanager
    def track(self) -> Iterator[None]:
        """Register the calling task during the context. Raises ApiError after `cancel_all`."""
        if self._over:
            raise _stopped()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            if not self._over:
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise _stopped() from cancelled
        finally:
            self._tasks.discard(task)

    def cancel_all(self) -> None:
        self._over = True
        for task in self._tasks:
            task.cancel()


def _stopped() -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the gateway is shutting down; retry the request",
        code="gateway_stopped",
    )
