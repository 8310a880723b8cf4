"""Requests under way, and how they end when the gateway does: with an error that says so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from tandem.gateway.errors import ApiError


class UnderWay:
    """The tasks that work for requests. One event loop only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Let the calling task work for a request; raise ApiError once the gateway ends."""
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

    def end(self) -> None:
        """End all of them, and all that are still to come."""
        self._over = True
        for task in self._tasks:
            task.cancel()


def _stopped() -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the gateway is being stopped; send the request again",
        code="gateway_stopped",
    )
