"""A gRPC client for the entries that take text."""

from __future__ import annotations

import ipaddress
import json
import queue
import threading
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.answer import Answer, AnswerChunk, AnswerTotals
from tandem.tools.errors import TandemError
from tandem.tools.triton.status import http_service

URL = "127.0.0.1:8001"
MODEL = "bls_stream"
Value: TypeAlias = str | int | float | bool | Sequence[str] | Sequence[int]
Inputs: TypeAlias = Mapping[Tensor, Value]

ORIGINS = (tensors.OUTPUT_KINDS, tensors.OUTPUT_TEXT_LENGTHS)
ALIVE_SECONDS = 2.0
SECONDS_BETWEEN_LOOKS = 1.0  # interval at which a waiting request checks whether to stop
SECONDS_TO_END = 10.0  # timeout for a stopped request to end
UNKNOWN_MODEL = "StatusCode.NOT_FOUND"
# Channels to this machine ignore the proxy that the environment sets.
THIS_MACHINE = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
NO_SERVER = ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")
SHUTTING_DOWN = "Server not ready"  # Triton's error for new requests while it shuts down


class ServedEntry(NamedTuple):
    """An entry of a running server that takes text.

    streams: whether it answers in chunks. parameters: the Triton parameters of the entry that runs
    the loop, which is this entry or the one to which it forwards requests.
    """

    name: str
    streams: bool
    parameters: Mapping[str, str]


def inputs_for(
    prompt: str | Inputs, max_tokens: int, more: Inputs, *, stream: bool = True
) -> Inputs:
    """Return all inputs of a request.

    prompt: the text, or the inputs that contain the prompt. more: inputs that override these.
    """
    always: dict[Tensor, Value] = {
        tensors.MAX_TOKENS: max_tokens,
        tensors.STREAM: stream,
        tensors.EXCLUDE_INPUT_IN_OUTPUT: True,
    }
    carried = {tensors.TEXT_INPUT: prompt} if isinstance(prompt, str) else prompt
    return {**always, **carried, **more}


def is_on_this_machine(url: str) -> bool:
    host = url.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


class Client(AbstractContextManager["Client"]):
    """A connection to one server. Every failure raises a TandemError with a one-line message.

    url: HOST:PORT of the server's gRPC endpoint. leaving: if set, by any thread, running requests
    are stopped and their answers end early.
    """

    def __init__(self, url: str, leaving: threading.Event | None = None) -> None:
        self._url = url
        self._leaving = leaving or threading.Event()
        here = THIS_MACHINE if is_on_this_machine(url) else None
        self._connection = grpc.InferenceServerClient(url, channel_args=here)

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def entry(self, name: str) -> ServedEntry:
        """Return an entry as the server describes it.

        Raises TandemError, which lists the server's entries, if there is no such entry.
        """
        try:
            config = self._connection.get_model_config(name).config
        except UnicodeEncodeError as error:
            raise TandemError(f"no entry '{name}'; the name must be UTF-8") from error
        except InferenceServerException as error:
            if error.status() != UNKNOWN_MODEL:
                raise self._failure(error) from error
            raise self._no_entry(f"no entry '{name}'") from error
        if not _takes_text(config):
            raise self._no_entry(f"'{name}' isn't an entry: it has no text input")
        parameters = {name: value.string_value for name, value in config.parameters.items()}
        if "stream_model" in parameters:
            parameters = dict(self.entry(parameters["stream_model"]).parameters)
        return ServedEntry(name, config.model_transaction_policy.decoupled, parameters)

    def stream(
        self, model: str, inputs: Inputs, *, tells_origins: bool = False
    ) -> Generator[AnswerChunk, None, None]:
        """Send a prompt to an entry and yield the chunks of the answer as they arrive.

        Closing the generator early stops the request. tells_origins: also request the kind of each
        token and the length of its text in characters.
        """
        request_id, begun, complete = str(uuid.uuid4()), False, False
        arrived: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()

        def take(result: Any, error: InferenceServerException | None) -> None:
            arrived.put(_Arrival(result, error, time.perf_counter()))

        began = time.perf_counter()
        self._connection.start_stream(take)
        try:
            self._send(model, request_id, inputs, tensors.ANSWER_OUTPUTS + ORIGINS * tells_origins)
            while not complete and not self._leaving.is_set():
                try:
                    arrival = arrived.get(timeout=SECONDS_BETWEEN_LOOKS)
                except queue.Empty:
                    continue
                begun, complete = True, arrival.is_last
                if arrival.error is not None:
                    raise self._failure(arrival.error)
                if arrival.result.as_numpy(tensors.TEXT_OUTPUT) is not None:
                    yield _chunk(arrival.result, arrival.moment - began)
        finally:
            try:
                if begun and not complete:
                    complete = self._leave(model, request_id, arrived)
            finally:
                # tritonclient never ends the thread of a stream that is cancelled.
                self._connection.stop_stream(cancel_requests=not complete)

    def answer(self, model: str, inputs: Inputs) -> Answer:
        answer = Answer()
        for chunk in self.stream(model, inputs):
            answer.add(chunk)
        return answer

    def _leave(self, model: str, request_id: str, arrived: queue.SimpleQueue[_Arrival]) -> bool:
        """Stop a request and discard its remaining chunks. Return whether it ended in time.

        The stream isn't cancelled, because that can make Triton hang while it sends a response
        (docs/deploy/security.md).
        """
        self._send(model, request_id, {tensors.STOP: True}, ())
        until = time.monotonic() + SECONDS_TO_END
        with suppress(queue.Empty):
            while (left := until - time.monotonic()) > 0:
                if arrived.get(timeout=left).is_last:
                    return True
        return False

    def _send(self, model: str, request_id: str, inputs: Inputs, outputs: Sequence[Tensor]) -> None:
        # If the stream is broken, this call fails and the stream's callback gets the reason.
        with suppress(InferenceServerException):
            self._connection.async_stream_infer(
                model,
                [_tensor(tensor, as_array(tensor, value)) for tensor, value in inputs.items()],
                request_id=request_id,
                outputs=[grpc.InferRequestedOutput(name) for name in outputs],
                enable_empty_final_response=bool(outputs),  # a `stop` has no response
            )

    def _no_entry(self, reason: str) -> TandemError:
        index = self._connection.get_model_repository_index().models
        ready = sorted(model.name for model in index if model.state == "READY")
        configs = {name: self._connection.get_model_config(name).config for name in ready}
        entries = [name for name, config in configs.items() if _takes_text(config)]
        return TandemError(f"{reason}; {self._url} has {', '.join(entries) or 'none'}")

    def _failure(self, error: InferenceServerException) -> TandemError:
        if error.status() in NO_SERVER:
            alive = False
            with suppress(InferenceServerException):
                alive = self._connection.is_server_live(client_timeout=ALIVE_SECONDS)
            if not alive:
                host, _, port = self._url.rpartition(":")
                if service := http_service(host, int(port)):
                    right = f"set --url to the gRPC port, such as {host}:8001"
                    return TandemError(f"{self._url} is {service}; {right}")
                return TandemError(f"no server responds at {self._url}; start one with: tandem up")
        if error.message() == SHUTTING_DOWN:
            return TandemError(f"the server at {self._url} is shutting down; start it again")
        return TandemError(" ".join(error.message().split()))


class _Arrival(NamedTuple):
    """A result or an error from the stream's thread. moment: time.perf_counter() on arrival."""

    result: Any
    error: InferenceServerException | None
    moment: float

    @property
    def is_last(self) -> bool:
        if self.error is not None:
            return True
        parameters = self.result.get_response().parameters
        return bool(parameters["triton_final_response"].bool_param)


def _chunk(result: Any, seconds: float) -> AnswerChunk:
    length = _number(result, tensors.SEQUENCE_LENGTH)
    totals = (
        tensors.NUM_ROUNDS,
        tensors.TOTAL_DRAFT_TOKENS,
        tensors.TOTAL_ACCEPTED_DRAFT_TOKENS,
    )
    reason = result.as_numpy(tensors.FINISH_REASON)
    statistics = result.as_numpy(tensors.SPEC_DECODE_STATISTICS)
    return AnswerChunk(
        text=result.as_numpy(tensors.TEXT_OUTPUT).item().decode(),
        tokens=result.as_numpy(tensors.OUTPUT_IDS).reshape(-1)[:length].tolist(),
        totals=AnswerTotals(*(_number(result, name) for name in totals)),
        finish_reason=None if reason is None else reason.item().decode(),
        seconds=seconds,
        statistics=None if statistics is None else json.loads(statistics.item()),
        kinds=_column(result, tensors.OUTPUT_KINDS),
        text_lengths=_column(result, tensors.OUTPUT_TEXT_LENGTHS),
    )


def _takes_text(config: Any) -> bool:
    return {tensors.TEXT_INPUT, tensors.MAX_TOKENS} <= {given.name for given in config.input}


def _number(result: Any, name: Tensor) -> int:
    return int(result.as_numpy(name).item())


def _column(result: Any, name: Tensor) -> list[int]:
    array = result.as_numpy(name)
    return [] if array is None else array.reshape(-1).tolist()


def as_array(tensor: Tensor, value: Value) -> NDArray[Any]:
    """Return a value as an array with a batch size of 1.

    The shape is [1, 1] for a single value and [1, n] for a list of n strings or ids.
    """
    values = [value] if isinstance(value, str | int | float) else value
    if tensor.dtype == "STRING":
        # Command-line bytes that aren't UTF-8 are sent unchanged, and the server rejects them.
        texts = [str(text).encode(errors="surrogateescape") for text in values]
        return np.array([texts], dtype=object)
    kind = np.dtype(triton_to_np_dtype(tensor.dtype))
    largest = max(map(int, values), default=0) if kind.kind in "iu" else 0
    if largest and largest > (limit := np.iinfo(kind).max):
        raise TandemError(f"input '{tensor}' must be at most {limit}; got {largest}")
    return np.array([values], dtype=kind)


def _tensor(tensor: Tensor, array: NDArray[Any]) -> grpc.InferInput:
    dtype = "BYTES" if tensor.dtype == "STRING" else tensor.dtype
    given = grpc.InferInput(tensor, array.shape, dtype)
    given.set_data_from_numpy(array)
    return given
