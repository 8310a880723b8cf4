"""A request on its own gRPC stream, which can be left before its end.

Triton serves all streams with one thread. Cancelling a stream while a response is being sent can
block this thread forever, which hangs all streams (see docs/deploy/security.md).

So to leave an answer that has begun, the gateway asks the loop to stop it and drops the remaining
responses. The `stop` uses the stream of its request, because another stream may connect to a
different server with the same name.

Before the first response, it is unlikely that a response is being sent, so the stream is cancelled.
(A `stop` would wait in the same queue as its request.)
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

SECONDS_TO_END = 30.0  # for a slow server; a server that hangs never ends a stream

Read: TypeAlias = ModelInferResponse | InferenceServerException


class InferStream:
    """A request and its responses. Every stream must be left, even after its last response.

    request, stop: keyword arguments of tritonclient's `infer`. Both have the same id.
    """

    def __init__(
        self, connection: InferenceServerClient, request: dict[str, Any], stop: dict[str, Any]
    ) -> None:
        self._stop = stop
        self._outbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._outbox.put_nowait(request)
        self._results = connection.stream_infer(self._requests())
        self._reading: asyncio.Task[Read | None] | None = None
        self._begun = self._complete = False  # state of the answer

    async def next(self) -> ModelInferResponse | None:
        """Return the next response, or None after the last one.

        Raises InferenceServerException for an entry's error, and grpc.RpcError if the stream fails.
        """
        read = None if self._complete else await self._next()
        if isinstance(read, InferenceServerException):
            raise read
        return read

    async def leave(self) -> None:
        """End the stream. Stop the request if its answer isn't complete."""
        if self._begun:
            if not self._complete:
                self._outbox.put_nowait(self._stop)
            await asyncio.wait([asyncio.create_task(self._drop())], timeout=SECONDS_TO_END)
        self._results.cancel()  # has no effect on an ended stream

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the requests. The stream stays open for a `stop` until the answer is complete."""
        while (request := await self._outbox.get()) is not None:
            yield request

    async def _next(self) -> Read | None:
        # gRPC cancels a stream if the task that reads it is cancelled. So a separate task reads,
        # and `leave` continues with that task.
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        reading = self._reading
        try:
            return await asyncio.shield(reading)
        finally:
            # Another waiting call may have started the next read already.
            if reading.done() and self._reading is reading:
                self._reading = None

    async def _read(self) -> Read | None:
        """Return the next response or error, or None at the end of the stream."""
        read: Read | None = None
        try:
            result, error = await anext(self._results)
            read = result.get_response() if error is None else error
        except StopAsyncIteration:
            pass
        finally:
            self._begun = True
            goes_on = isinstance(read, ModelInferResponse) and not any(
                output.name == tensors.FINISH_REASON for output in read.outputs
            )
            if not (goes_on or self._complete):
                self._complete = True
                self._outbox.put_nowait(None)
        return read

    async def _drop(self) -> None:
        """Read to the end of the stream."""
        with suppress(grpc.RpcError, asyncio.CancelledError):
            while await self._next() is not None:
                pass
