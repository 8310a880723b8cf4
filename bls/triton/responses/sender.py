"""The way back to a client.

Triton 2.51 frees what belongs to a request when its final response is sent, and asking afterwards
whether it was cancelled crashes the whole server; a question that overlaps the final response does
too. So questions and responses take turns here, and after the final response there are none.

A response with the final flag has one chance: where it does not fit into shared memory, Triton has
noted its end already, takes nothing more, and the client waits for ever. So one that is large goes
ahead of the flag, and the flag is sent only while there is memory for it.

Sending waits for a thread of the server. Whoever must not wait refuses: that is done on a thread
of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import AnswerNotSent
from tandem.bls.triton.background import in_background, log_exception, log_warning
from tandem.bls.triton.responses.deliveries import Deliveries
from tandem.contract.errors import ErrorCode, coded

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
LARGE_BYTES = 2**17  # of a response: it may have to wait for more shared memory
SPARE_BYTES = 2**18  # free in shared memory: what the largest small response takes, twice
GROWTH_BYTES = 2**24  # free in /dev/shm: Triton takes a MiB at a time
SECONDS_BETWEEN_TRIES = 0.2


class Sender:
    """Sends the responses to one request. Thread-safe; after the final one it does nothing.

    decoupled: whether the model is; only then may a response go ahead of the final flag.
    codes_errors: write the code before an error's line, for a model of ours that asks.
    deliveries: notes which responses are under way.
    """

    def __init__(
        self,
        request: Any,
        *,
        decoupled: bool,
        codes_errors: bool = False,
        deliveries: Deliveries | None = None,
    ) -> None:
        self._sender = request.get_response_sender()
        self._decoupled = decoupled
        self._codes_errors = codes_errors
        self._deliveries = deliveries or Deliveries()
        self._lock = threading.Lock()
        self._closed = False
        self._ending = threading.Lock()  # taken for good by whoever ends the request early

    @property
    def closed(self) -> bool:
        """Whether the final response has been sent."""
        return self._closed

    def is_cancelled(self) -> bool:
        """Whether the client is known to have gone. It never waits for a response under way."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not self._closed and self._sender.is_cancelled()
        finally:
            self._lock.release()

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response, and the end of the request with the last one.

        Raises AnswerNotSent where there is no memory; the request can still be refused.
        """
        size = _bytes_of(response) if final else 0
        large = self._decoupled and size > LARGE_BYTES
        with self._lock:
            if self._closed:
                return
            if large or not final:
                self._hand_over(response)
            if final:
                self._end(None if large else response, 0 if large else size)

    def refuse(self, line: str, code: ErrorCode = "INTERNAL") -> None:
        """Send one line instead of an answer, soon, without waiting for it."""
        if self._codes_errors:
            line = coded(code, line)
        error = pb_utils.TritonError(line, getattr(pb_utils.TritonError, code))
        self._end_soon(pb_utils.InferenceResponse(error=error))

    def close(self) -> None:
        """End without a word, soon: for a call that asks for nothing."""
        self._end_soon(None)

    def _end_soon(self, response: Any) -> None:
        if not self._closed and self._ending.acquire(blocking=False):
            end = partial(self._end_when_possible, response)
            in_background(end, lambda _: end())  # nobody else would

    def _end_when_possible(self, response: Any) -> None:
        told = False
        while not self._closed:
            try:
                with self._lock:
                    if not self._closed:
                        self._end(response)
            except AnswerNotSent:
                if not told:
                    log_warning("a request waits for its end: the server's shared memory is full")
                    told = True
                time.sleep(SECONDS_BETWEEN_TRIES)

    def _end(self, response: Any, size: int = 0) -> None:
        """Send what goes with the final flag, and the flag. Call with the lock held.

        size: bytes of the response, where it may be large.
        """
        if not _memory_for_the_end(size):
            raise AnswerNotSent("the answer cannot be sent: the server's shared memory is full")
        try:
            with self._deliveries.one():
                if response is None:
                    self._sender.send(flags=FINAL)
                else:
                    self._sender.send(response, flags=FINAL)
        except Exception as error:  # noqa: BLE001  whatever it was, Triton takes nothing more
            log_exception("the end of a request could not be sent", error)
        finally:
            self._closed = True

    def _hand_over(self, response: Any) -> None:
        try:
            with self._deliveries.one():
                self._sender.send(response)
        except Exception as error:
            log_exception("a response could not be sent", error)
            raise AnswerNotSent(
                "the answer cannot be sent: it does not fit into the server's shared memory "
                "(/dev/shm; docker's --shm-size)"
            ) from error


def _bytes_of(response: Any) -> int:
    """What the numbers and the texts in a response take."""
    size = 0
    for array in (tensor.as_numpy() for tensor in response.output_tensors()):
        size += array.nbytes if array.dtype != object else sum(map(_bytes_of_text, array.flat))
    return size


def _bytes_of_text(text: str | bytes) -> int:
    return len(text.encode() if isinstance(text, str) else text)


def _memory_for_the_end(size: int) -> bool:
    """Whether a response surely finds shared memory, of what Triton holds or may take.

    size: its bytes, where they are more than few.
    """
    # What a process shares with Triton. It is not documented: it may be gone one day.
    pool = getattr(sys.modules.get("c_python_backend_utils"), "shared_memory", None)
    free_memory = getattr(pool, "free_memory", None)
    if free_memory is not None and free_memory() >= SPARE_BYTES + size:
        return True
    left = os.statvfs("/dev/shm")
    return left.f_bavail * left.f_frsize >= GROWTH_BYTES + size
