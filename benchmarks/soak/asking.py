"""Sends one request to an entry, and may disconnect early."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tandem.contract import entry as tensors

BASELINE = "ensemble"
STREAM = "bls_stream"
PATIENCE = 60.0  # seconds without an answer after which a client counts its request as lost
NO_ANSWER = f"no answer within {PATIENCE:g} s"
TYPES: dict[str, str] = {tensor: tensor.dtype for tensor in tensors.INPUTS}


@dataclass(frozen=True)
class SoakRequest:
    """A request of one or more prompts.

    timeout: in microseconds; 0 for the server's default. stay: seconds after which the client
    cancels; None if it doesn't.
    """

    entry: str
    prompts: tuple[str, ...]
    values: Mapping[str, Any]
    timeout: int = 0
    stay: float | None = None

    @property
    def leaves_at(self) -> float:
        """When the client stops waiting, in seconds of the monotonic clock."""
        return time.monotonic() + (PATIENCE if self.stay is None else self.stay)

    def outcome_after_leaving(self, texts: Iterable[str]) -> SoakOutcome:
        """Return the outcome of a client that has stopped waiting."""
        if self.stay is None:
            return SoakOutcome(tuple(texts), NO_ANSWER)
        return SoakOutcome(tuple(texts), left=True)


@dataclass
class SoakOutcome:
    """The outcome of a request. Times are monotonic seconds.

    texts: one per prompt, complete unless the client left or there was an error.
    """

    texts: tuple[str, ...]
    error: str = ""
    left: bool = False
    began: float = 0.0
    ended: float = 0.0


def ask(url: str, request: SoakRequest) -> SoakOutcome:
    began = time.monotonic()
    how = _stream if request.entry == STREAM else _infer
    with grpc.InferenceServerClient(url) as connection:
        outcome = how(connection, request)
    outcome.began, outcome.ended = began, time.monotonic()
    return outcome


def _stream(connection: grpc.InferenceServerClient, request: SoakRequest) -> SoakOutcome:
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    texts = [""] * len(request.prompts)
    complete = False
    connection.start_stream(lambda result, error: arrived.put((result, error)))
    try:
        connection.async_stream_infer(
            request.entry,
            _inputs(request, stream=True),
            enable_empty_final_response=True,
            timeout=request.timeout or None,
        )
        leaves_at = request.leaves_at
        while True:
            try:
                result, error = arrived.get(timeout=max(0.0, leaves_at - time.monotonic()))
            except queue.Empty:
                return request.outcome_after_leaving(texts)
            if error is not None:
                complete = True
                return SoakOutcome(tuple(texts), error.message())
            text = result.as_numpy(tensors.TEXT_OUTPUT)
            if text is not None:
                row = result.as_numpy(tensors.BATCH_INDEX).item()
                texts[row] += text.item().decode()
            if result.get_response().parameters["triton_final_response"].bool_param:
                complete = True
                return SoakOutcome(tuple(texts))
    except InferenceServerException as error:
        return SoakOutcome(tuple(texts), error.message())
    finally:
        # tritonclient never ends the thread of a stream that is cancelled.
        connection.stop_stream(cancel_requests=not complete)


def _infer(connection: grpc.InferenceServerClient, request: SoakRequest) -> SoakOutcome:
    arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    call = connection.async_infer(
        request.entry,
        _inputs(request, stream=False),
        lambda result, error: arrived.put((result, error)),
        timeout=request.timeout or None,
    )
    try:
        result, error = arrived.get(timeout=max(0.0, request.leaves_at - time.monotonic()))
    except queue.Empty:
        call.cancel()
        return request.outcome_after_leaving(())
    if error is not None:
        return SoakOutcome((), error.message())
    return SoakOutcome(tuple(text.decode() for text in result.as_numpy(tensors.TEXT_OUTPUT)))


def _inputs(request: SoakRequest, *, stream: bool) -> list[grpc.InferInput]:
    """Return the inputs, with the same values for each of the b prompts.

    Shapes are [b, 1], or [b, n] for lists.
    """
    made = [_input(tensors.TEXT_INPUT, [[prompt] for prompt in request.prompts])]
    for name, value in {**request.values, tensors.STREAM: stream}.items():
        row = list(value) if isinstance(value, tuple) else [value]
        made.append(_input(name, [row for _ in request.prompts]))
    return made


def _input(name: str, rows: list[list[Any]]) -> grpc.InferInput:
    dtype = TYPES[name]
    if dtype == "STRING":
        array = np.array([[text.encode() for text in row] for row in rows], dtype=object)
    else:
        array = np.array(rows, triton_to_np_dtype(dtype))
    given = grpc.InferInput(name, array.shape, "BYTES" if dtype == "STRING" else dtype)
    given.set_data_from_numpy(array)
    return given
