"""The connection to Triton: send requests to the entry that runs the loop, and read its chunks.

Each request has its own gRPC stream, which can be left before its end. Triton serves all streams
with one thread. Cancelling a stream while a response is being sent can block this thread forever,
which hangs all streams (see docs/deploy/security.md).

So to leave an answer that has begun, the gateway asks the loop to stop it and drops the remaining
responses. The `stop` uses the stream of its request, because another stream may connect to a
different server with the same name.

Before the first response, it is unlikely that a response is being sent, so the stream is cancelled.
(A `stop` would wait in the same queue as its request.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Literal, NamedTuple, TypeAlias

import grpc
import numpy as np
from tritonclient.grpc import InferInput, InferRequestedOutput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.service_pb2 import ModelInferResponse
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tandem.contract import entry as tensors
from tandem.contract.entry import new_forwarded_id
from tandem.contract.errors import split_class, split_code
from tandem.contract.tensor import Tensor
from tandem.gateway.errors import (
    LOG,
    STATUS_OF_CLASS,
    STATUS_OF_CODE,
    ApiError,
    gateway_stopped,
)
from tandem.gateway.models import ServedModels, served_models
from tandem.gateway.tasks import offload

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


Value: TypeAlias = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]
Inputs: TypeAlias = Mapping[Tensor, Value]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]  # OpenAI's

GRPC_CODES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}
# Spread requests over all addresses of a name, and reconnect quickly. By default, gRPC uses only
# the first address, waits up to two minutes before it reconnects, and uses a proxy from the
# environment.
CHANNEL = [
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
# The loop's finish reasons in OpenAI's terms. Unknown ones become "stop".
FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}
PER_NUMBER = 10  # cost of writing a number, in characters of text
SECONDS_TO_ANSWER = 5.0  # for requests about the server itself
SECONDS_TO_CLOSE = 3.0  # for running requests to end when the gateway closes
# Optional outputs, [1, 1, n, ...], and their types.
EXTRAS = {
    tensor: triton_to_np_dtype(tensor.dtype)
    for tensor in (
        tensors.OUTPUT_ROUNDS,
        tensors.OUTPUT_KINDS,
        tensors.OUTPUT_TEXT_LENGTHS,
        tensors.OUTPUT_REJECTED_IDS,
        tensors.OUTPUT_LOG_PROBS,
        tensors.OUTPUT_TOP_IDS,
        tensors.OUTPUT_TOP_LOG_PROBS,
        tensors.PROMPT_LOG_PROBS,
        tensors.PROMPT_TOP_IDS,
        tensors.PROMPT_TOP_LOG_PROBS,
    )
}
PROMPT_EXTRAS = frozenset(name for name in EXTRAS if name.startswith("prompt_"))


class ResponseChunk(NamedTuple):
    """A part of an answer, or all of it. Totals count from the start of the request.

    finish_reason, statistics: None before the last chunk. extras: the requested optional outputs,
    with one row per token of the answer or of the prompt.
    """

    text: str
    tokens: list[int]
    num_rounds: int
    num_draft_tokens: int
    num_accepted_tokens: int
    finish_reason: FinishReason | None = None
    statistics: Mapping[str, Any] | None = None
    extras: Mapping[str, Sequence[Any]] = {}

    @property
    def size(self) -> int:
        """The cost of reading and writing the chunk, in characters of text."""
        values = 0
        for rows in self.extras.values():  # numbers, or lists of equal length
            values += len(rows) * (len(rows[0]) if rows and isinstance(rows[0], list) else 1)
        return len(self.text) + PER_NUMBER * values


def without_tokens(chunk: ResponseChunk) -> ResponseChunk:
    """Return the chunk with only the data about the prompt."""
    extras = {name: rows if name in PROMPT_EXTRAS else [] for name, rows in chunk.extras.items()}
    reason: FinishReason | None = None if chunk.finish_reason is None else "length"
    return chunk._replace(text="", tokens=[], extras=extras, finish_reason=reason)


class Triton:
    """A connection to Triton, made when it is first used. Raises only ApiErrors.

    url: address and port of the gRPC endpoint. If the name has several addresses, all of them are
    used, so they must serve the same models.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._models: asyncio.Task[ServedModels] | None = None
        self._open: set[InferStream] = set()
        self.stopped = False

    @cached_property
    def _connection(self) -> InferenceServerClient:
        return InferenceServerClient(self._url, channel_args=CHANNEL)  # needs the event loop

    async def ready(self) -> bool:
        """Whether the server runs the loop and accepts streams."""
        try:
            model = (await self.models()).stream_model
            async for _, error in self._connection.stream_infer(
                _only(_stop_request(model)), stream_timeout=SECONDS_TO_ANSWER
            ):
                if error is not None:
                    raise error
        except (ApiError, InferenceServerException, grpc.RpcError):
            self._models = None
            return False
        else:
            return True

    async def models(self) -> ServedModels:
        """Return the served models. They are read once per connection to the server.

        Concurrent calls share one read, because a read blocks the event loop for a while.
        """
        if self._models is None:
            self._models = asyncio.create_task(self._served_models())
        return await asyncio.shield(self._models)

    async def generate(
        self, model: str, inputs: Inputs, extras: Sequence[Tensor] = ()
    ) -> AsyncGenerator[ResponseChunk, None]:
        """Send a request to the entry that runs the loop. Yield the chunks of its answer."""
        stop = _stop_request(model)
        size = sum(_size(value) for value in inputs.values())
        request = {
            **stop,  # the request's id
            "inputs": await offload(size, lambda: [_tensor(*item) for item in inputs.items()]),
            "outputs": [InferRequestedOutput(name) for name in (*tensors.ANSWER_OUTPUTS, *extras)],
        }
        if self.stopped:
            raise gateway_stopped()
        stream = InferStream(self._connection, request, stop)
        self._open.add(stream)
        try:
            async with self._converted_errors(model):
                while (response := await stream.responses.get()) is not None:
                    if isinstance(response, Exception):
                        raise response
                    yield await offload(response.ByteSize(), partial(_chunk, response))
        finally:
            stream.leave().add_done_callback(lambda _: self._open.discard(stream))

    async def manage_pools(self, command: str) -> list[dict[str, Any]]:
        """Send a command for lookup pools. Return the pools that it lists or empties."""
        model = (await self.models()).stream_model
        request = {
            **_stop_request(model),  # the request's id
            "inputs": [_tensor(tensors.MANAGE_POOLS, command)],
            "outputs": [InferRequestedOutput(tensors.TEXT_OUTPUT)],
        }
        found: list[dict[str, Any]] = []
        async with self._converted_errors(model):
            async for result, error in self._connection.stream_infer(
                _only(request), stream_timeout=SECONDS_TO_ANSWER
            ):
                if error is not None:
                    raise error
                found = json.loads(result.as_numpy(tensors.TEXT_OUTPUT).item())
        return found

    def stop(self) -> None:
        """End all requests, including later ones, with an error, because the gateway stops."""
        self.stopped = True
        for stream in self._open:
            stream.fail(gateway_stopped())

    async def close(self) -> None:
        if self._open:
            await asyncio.wait([s.leave() for s in self._open], timeout=SECONDS_TO_CLOSE)
        await self._connection.close()

    async def _served_models(self) -> ServedModels:
        try:
            index = await self._connection.get_model_repository_index(
                as_json=True, client_timeout=SECONDS_TO_ANSWER
            )
            loaded = {m["name"] for m in index.get("models", []) if m.get("state") == "READY"}
            answers = [
                await self._connection.get_model_config(
                    name, as_json=True, client_timeout=SECONDS_TO_ANSWER
                )
                for name in sorted(loaded)
            ]
            return served_models(answer["config"] for answer in answers)
        except InferenceServerException as error:
            raise self._no_server(error.message() or "") from error
        except BaseException:  # let the next call try again
            self._models = None
            raise

    @asynccontextmanager
    async def _converted_errors(self, model: str) -> AsyncIterator[None]:
        """Convert errors of a request for this model to ApiErrors."""
        try:
            yield
        except InferenceServerException as error:
            raise await self._rejection(model, error.message()) from error
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
            if code is grpc.StatusCode.UNAVAILABLE:
                raise self._no_server(details) from error
            status = GRPC_CODES.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)
            raise ApiError(status, _line(details)) from error

    async def _rejection(self, model: str, line: str) -> ApiError:
        """Convert an entry's error line to the client's error, using the line's class or code.

        Its `param` is the entry's input, which `client_error` replaces with the client's field.

        An error with neither a class nor a code comes from Triton itself or is unexpected.
        """
        code, field, rest = split_code(_line(line))
        error_class, message = split_class(rest)
        if error_class is not None:
            status = STATUS_OF_CLASS[error_class]
            return ApiError(status, message, param=field or None, code=error_class)
        if code is None and not await self.ready():
            return ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"model '{model}' isn't ready: {message}",
                code="no_server",
            )
        status = STATUS_OF_CODE.get(code or "INTERNAL", HTTPStatus.INTERNAL_SERVER_ERROR)
        return ApiError(status, message, param=field or None)

    def _no_server(self, message: str) -> ApiError:
        self._models = None
        LOG.warning("no Triton responds at %s: %s", self._url, _line(message))
        return ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"no Triton responds at {self._url}; start it, or set the gateway's --url",
            code="no_server",
        )


async def _only(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield the requests of a stream that has one."""
    yield request


def _stop_request(model: str) -> dict[str, Any]:
    """Return a request that stops the request with the same id. It gets no answer.

    The id is new. Its form tells the entries to put codes before error lines.
    """
    return {
        "model_name": model,
        "request_id": new_forwarded_id(),
        "inputs": [_tensor(tensors.STOP, True)],
    }


def _chunk(response: ModelInferResponse) -> ResponseChunk:
    """Read a response from its raw bytes, which is 4 times as fast as tritonclient's arrays."""
    shapes = {output.name: output.shape for output in response.outputs}
    raw = dict(zip(shapes, response.raw_output_contents, strict=True))
    length = _number(raw[tensors.SEQUENCE_LENGTH])
    reason = raw.get(tensors.FINISH_REASON)
    statistics = raw.get(tensors.SPEC_DECODE_STATISTICS)
    return ResponseChunk(
        text=_string(raw[tensors.TEXT_OUTPUT]),
        tokens=np.frombuffer(raw[tensors.OUTPUT_IDS], np.int32, length).tolist(),
        num_rounds=_number(raw[tensors.NUM_ROUNDS]),
        num_draft_tokens=_number(raw[tensors.TOTAL_DRAFT_TOKENS]),
        num_accepted_tokens=_number(raw[tensors.TOTAL_ACCEPTED_DRAFT_TOKENS]),
        finish_reason=None if reason is None else FINISH_REASONS.get(_string(reason), "stop"),
        statistics=None if statistics is None else json.loads(_string(statistics)),
        extras={
            name: np.frombuffer(raw[name], EXTRAS[name]).reshape(shapes[name][2:]).tolist()
            for name in raw.keys() & EXTRAS.keys()
        },
    )


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _string(raw: bytes) -> str:
    """Read one string, which follows its length."""
    return raw[4:].decode()


def _size(value: Value) -> int:
    """Return the cost of converting a value to a tensor, in characters of text."""
    if isinstance(value, int | float):
        return PER_NUMBER
    if isinstance(value, str):
        return len(value)
    length = sum(map(len, value)) if value and isinstance(value[0], str) else 0  # type: ignore[arg-type]
    return length + PER_NUMBER * len(value)


def _tensor(tensor: Tensor, value: Value) -> InferInput:
    """Return a batch of one as a tensor: [1, 1], or [1, n] for several values."""
    values = [value] if isinstance(value, str | int | float) else value
    if tensor.dtype == "STRING":
        array = np.array([[str(text).encode() for text in values]], dtype=object)
    else:
        array = np.array([values], dtype=triton_to_np_dtype(tensor.dtype))
    dtype = "BYTES" if tensor.dtype == "STRING" else tensor.dtype
    given = InferInput(tensor, array.shape, dtype)
    given.set_data_from_numpy(array)
    return given


def _line(message: str) -> str:
    return " ".join(message.split())
