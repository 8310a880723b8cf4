"""One request on a stream of its own, and how to leave it before its end.

Triton serves all streams with one thread. A stream that is cancelled while a response goes out can
make this thread hang (docs/deploy/security.md says why), and no stream gets a response any more.
So whoever leaves an answer that has begun asks the loop to stop, and drops what still comes. The
``stop`` goes the same way as its request: another stream may lead to another server of the same
name. Where no response has come, none is likely to go out just then, and the stream is cancelled:
a ``stop`` is a request too, and would wait with its own among those of a crowd.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.service_pb2 import ModelInferResponse
from tritonclient.utils import InferenceServerException

from tandem.contract import entry as tensors

SECONDS_TO_END = 30.0  # for a server that is short of time; one that hangs never ends a stream

Read: TypeAlias = ModelInferResponse | InferenceServerException


class InferStream:
    """A request and the responses to it. Every stream must be left, also at its end.

    request, stop: arguments of tritonclient's ``infer`` by name; both have the same id.
    """

    def __init__(
        self, connection: InferenceServerClient, request: dict[str, Any], stop: dict[str, Any]
    ) -> None:
        self._stop = stop
        self._outbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._outbox.put_nowait(request)
        self._results = connection.stream_infer(self._requests())
        self._reading: asyncio.Task[Read | None] | None = None
        self._begun = self._complete = False  # the answer

    async def next(self) -> ModelInferResponse | None:
        """Return the next response; None after the last one.

        Raises InferenceServerException with an error's line, grpc.RpcError where the stream fails.
        """
        read = None if self._complete else await self._next()
        if isinstance(read, InferenceServerException):
            raise read
        return read

    async def leave(self) -> None:
        """End the stream, and with it the request if it is not complete."""
        if self._begun:
            if not self._complete:
                self._outbox.put_nowait(self._stop)
            await asyncio.wait([asyncio.create_task(self._drop())], timeout=SECONDS_TO_END)
        self._results.cancel()  # one that has ended takes no notice

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        """What is sent: the stream stays open for a ``stop`` until the request is complete."""
        while (request := await self._outbox.get()) is not None:
            yield request

    async def _next(self) -> Read | None:
        # gRPC cancels a stream if the task that reads from it is cancelled. So one of its own
        # reads, and whoever leaves takes it over.
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        reading = self._reading
        try:
            return await asyncio.shield(reading)
        finally:
            if reading.done() and self._reading is reading:  # whoever also waited may read on
                self._reading = None

    async def _read(self) -> Read | None:
        """Read what comes next, None at the end of the stream."""
        read: Read | None = None
        try:
            result, error = await anext(self._results)
            read = result.get_response() if error is None else error
        except StopAsyncIteration:
            return None
        else:
            return read
        finally:
            self._begun = True
            if not self._complete and (read is None or _is_last(read)):
                self._complete = True
                self._outbox.put_nowait(None)

    async def _drop(self) -> None:
        """Read to the end of the stream."""
        with suppress(grpc.RpcError, asyncio.CancelledError):
            while await self._next() is not None:
                pass


def _is_last(read: Read) -> bool:
    if isinstance(read, InferenceServerException):
        return True
    return any(output.name == tensors.FINISH_REASON for output in read.outputs)
