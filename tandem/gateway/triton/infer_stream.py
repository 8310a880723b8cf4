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
from typing import Any, TypeAlias

from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.service_pb2 import ModelInferResponse

from tandem.contract import entry as tensors

SECONDS_TO_END = 30.0  # for a slow server; a server that hangs never ends a stream

# A response, or an error; None: the answer is complete.
Read: TypeAlias = ModelInferResponse | Exception | None


class InferStream:
    """A request and its responses. Call `leave` on every stream, even after its last response.

    request, stop: keyword arguments of tritonclient's `infer`. Both have the same id. responses:
    what has arrived. A separate task reads it, because gRPC cancels a stream if the task that reads
    it is cancelled.
    """

    def __init__(
        self, connection: InferenceServerClient, request: dict[str, Any], stop: dict[str, Any]
    ) -> None:
        self.responses: asyncio.Queue[Read] = asyncio.Queue()
        self._stop = stop
        self._outbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._outbox.put_nowait(request)
        self._results = connection.stream_infer(self._requests())
        self._begun = False  # whether a response has arrived
        self._reading = asyncio.create_task(self._read())
        self._leaving: asyncio.Task[None] | None = None

    def leave(self) -> asyncio.Task[None]:
        """Return the task that ends the stream, and stops the request if it isn't complete."""
        if self._leaving is None:
            self._leaving = asyncio.create_task(self._end())
        return self._leaving

    def fail(self, error: Exception) -> None:
        """Replace the responses that haven't been read yet by an error."""
        while not self.responses.empty():
            self.responses.get_nowait()
        self.responses.put_nowait(error)

    async def _end(self) -> None:
        if self._begun:
            self._outbox.put_nowait(self._stop)  # not sent if the answer is complete
            await asyncio.wait([self._reading], timeout=SECONDS_TO_END)
        self._results.cancel()  # has no effect on an ended stream

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the requests. The stream stays open for a `stop` until the answer is complete."""
        while (request := await self._outbox.get()) is not None:
            yield request

    async def _read(self) -> None:
        """Read to the end of the stream."""
        try:
            async for result, error in self._results:
                self._begun = True
                read = error or result.get_response()
                self.responses.put_nowait(read)
                if error is not None or _is_last(read):
                    self.responses.put_nowait(None)
                    self._outbox.put_nowait(None)
        except asyncio.CancelledError:  # `leave` has cancelled the stream
            pass
        except Exception as error:  # noqa: BLE001 reraised where the responses are used
            self.responses.put_nowait(error)
        self.responses.put_nowait(None)
        self._outbox.put_nowait(None)


def _is_last(response: ModelInferResponse) -> bool:
    return any(output.name == tensors.FINISH_REASON for output in response.outputs)
