"""A client's request: reads its id, parameters and timeout, and sends its responses.

Triton accepts arbitrary bytes as an id or parameters over HTTP.

Triton 2.51 frees a request when its final response is sent. Checking for cancellation during or
after the final response crashes the server. So checks and responses are serialized here, and none
follow the final response.

Sending a response with the final flag can't be retried. If it doesn't fit into shared memory,
Triton has already recorded the end and accepts no other response, so the client hangs. So a large
response is sent before the flag, and the flag is sent only if there is memory for it.

Sending blocks until a thread of the server is free. Errors must not block, so they are sent on
a new thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import AnswerNotSent, BadRequest
from tandem.bls.triton.background import log_exception, log_warning, run_in_background
from tandem.contract.errors import ErrorCode, prefix_code


def id_of(request: Any) -> str:
    """Return the request's id, or "" if it isn't UTF-8.

    A request with such an id can't be stopped.
    """
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def parameters_of(request: Any) -> str:
    """Return the parameters as a JSON object; raise BadRequest if they aren't UTF-8."""
    try:
        return str(request.parameters())
    except UnicodeDecodeError as error:
        raise BadRequest("the request's id and parameters must be UTF-8") from error


def timeout_of(request: Any, parameters: str) -> int:
    """Return the client's timeout for the request in microseconds; 0: none.

    Triton reads `timeout` from `infer`'s parameters. From `generate`, it passes the key on unread.
    """
    timeout = request.timeout() or json.loads(parameters or "{}").get("timeout", 0)
    if type(timeout) is not int or timeout < 0:
        raise BadRequest("parameter 'timeout' must be a number of microseconds, such as 5000000")
    return timeout


FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
LARGE_BYTES = 2**17  # a response of at least this size may need more shared memory
SPARE_BYTES = 2**18  # required free shared memory: twice the size of the largest small response
GROWTH_BYTES = 2**24  # or required free space in /dev/shm: Triton allocates 1 MiB at a time
RETRY_INTERVAL = 0.2


class Deliveries:
    """Responses of one loop that Triton hasn't accepted yet. Thread-safe.

    Triton accepts a response within milliseconds, no matter how slowly the client reads. If it
    takes longer, Triton's streams hang (docs/deploy/security.md). No other health check detects
    that.
    """

    def __init__(self) -> None:
        self._started_at: dict[object, float] = {}

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count a response as pending until the context ends."""
        delivery = object()
        self._started_at[delivery] = time.monotonic()
        try:
            yield
        finally:
            del self._started_at[delivery]

    @property
    def oldest_seconds(self) -> int:
        """Whole seconds that the oldest response has waited; 0 if there is none."""
        started_at = list(self._started_at.values())
        return int(time.monotonic() - min(started_at)) if started_at else 0


class Sender:
    """Sends the responses to one request. Does nothing after the final response. Thread-safe.

    decoupled: whether the model is decoupled; only then may a response precede the final flag.
    with_error_codes: whether to write the code before an error's message, for calls by Tandem's
    own models. deliveries: tracks responses that Triton hasn't accepted yet.
    """

    def __init__(
        self,
        request: Any,
        *,
        decoupled: bool,
        with_error_codes: bool = False,
        deliveries: Deliveries | None = None,
    ) -> None:
        self._sender = request.get_response_sender()
        self._decoupled = decoupled
        self._with_error_codes = with_error_codes
        self._deliveries = deliveries or Deliveries()
        self._lock = threading.Lock()
        self._closed = False
        self._ending = threading.Lock()  # kept by the thread that ends the request early

    @property
    def closed(self) -> bool:
        """Whether the final response has been sent."""
        return self._closed

    def is_cancelled(self) -> bool:
        """Ask Triton whether the client has left. Returns False while a response is being sent."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not self._closed and self._sender.is_cancelled()
        finally:
            self._lock.release()

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response. A final response also ends the request.

        Raises AnswerNotSent if the response doesn't fit into shared memory. ``send_error`` still
        works after that.
        """
        size = _bytes_of(response) if final else 0
        large = self._decoupled and size > LARGE_BYTES
        with self._lock:
            if self._closed:
                return
            if large or not final:
                self._send_part(response)
            if final:
                self._end(None if large else response, 0 if large else size)

    def send_error(self, line: str, code: ErrorCode = "INTERNAL", field: str = "") -> None:
        """End the request with an error of one line. Doesn't block.

        field: name of the input that is wrong.
        """
        if self._with_error_codes:
            line = prefix_code(code, line, field)
        error = pb_utils.TritonError(line, getattr(pb_utils.TritonError, code))
        self._end_in_background(pb_utils.InferenceResponse(error=error))

    def close(self) -> None:
        """End the request without a response. Doesn't block."""
        self._end_in_background(None)

    def _end_in_background(self, response: Any) -> None:
        if not self._closed and self._ending.acquire(blocking=False):
            end = partial(self._end_with_retries, response)
            run_in_background(end, lambda _: end())  # without a free thread, end it on this one

    def _end_with_retries(self, response: Any) -> None:
        logged = False
        while not self._closed:
            try:
                with self._lock:
                    if not self._closed:
                        self._end(response)
            except AnswerNotSent:
                if not logged:
                    log_warning(
                        "the end of a request is delayed: the server's shared memory is full"
                    )
                    logged = True
                time.sleep(RETRY_INTERVAL)

    def _end(self, response: Any, size: int = 0) -> None:
        """Send the final flag, with a response if there is one. Call with the lock held.

        size: size of the response in bytes; 0 if it is small.
        """
        if not _has_memory_for_end(size):
            raise AnswerNotSent("the answer can't be sent: the server's shared memory is full")
        try:
            with self._deliveries.track():
                if response is None:
                    self._sender.send(flags=FINAL)
                else:
                    self._sender.send(response, flags=FINAL)
        except Exception as error:  # noqa: BLE001  Triton accepts no response after an error
            log_exception("failed to send the end of a request", error)
        finally:
            self._closed = True

    def _send_part(self, response: Any) -> None:
        try:
            with self._deliveries.track():
                self._sender.send(response)
        except Exception as error:
            log_exception("failed to send a response", error)
            raise AnswerNotSent(
                "the answer can't be sent: it doesn't fit into the server's shared memory; enlarge "
                "/dev/shm, for example with docker's --shm-size"
            ) from error


def _bytes_of(response: Any) -> int:
    """Return the size of a response's tensors in bytes."""
    size = 0
    for array in (tensor.as_numpy() for tensor in response.output_tensors()):
        if array.dtype != object:
            size += array.nbytes
        else:
            size += sum(len(t.encode() if isinstance(t, str) else t) for t in array.flat)
    return size


def _has_memory_for_end(size: int) -> bool:
    """Return whether a response fits into shared memory that Triton has or can allocate.

    size: size of the response in bytes; 0 if it is small.
    """
    # The memory that this process shares with Triton. The attribute is undocumented, so it may be
    # missing.
    pool = getattr(sys.modules.get("c_python_backend_utils"), "shared_memory", None)
    free_memory = getattr(pool, "free_memory", None)
    if free_memory is not None and free_memory() >= SPARE_BYTES + size:
        return True
    left = os.statvfs("/dev/shm")
    return left.f_bavail * left.f_frsize >= GROWTH_BYTES + size
