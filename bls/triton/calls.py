"""Makes BLS calls without triggering Triton's known bugs.

This module handles all known hazards between a BLS model and the models that it calls (measured
with Triton 2.51):

- Streaming responses into a BLS model can deadlock its process (still so upstream in 2026-06), so
  no engine streams. Three threads are involved. A thread woken by a second response waits for the
  GIL while it holds its iterator's mutex. One more response then blocks the thread that dispatches
  responses, which holds the mutex of all iterators. A call that returns meanwhile waits for that
  mutex while it holds the GIL. Also, an error after a first response is lost, because its id is
  never written (fixed in r25.04).
- A decoupled model may end a call with an empty second response. An iterator that saw more than one
  response crashes the caller if it is freed while its last response arrives (fixed upstream in
  r25.01). So iterators are kept alive for a second after the call.
- A call can't be cancelled, and dropping its iterator doesn't stop it. So a second call with the
  same request id and ``stop`` asks the engine to stop.
- An error loses its code (fixed in r25.04). So Tandem's models write the code before the message
  (``contract.errors``).
- ``trace=request.trace()`` crashes decoupled models. So no call passes it.

``bls.triton.client`` handles the hazards of responses to clients.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import (
    Abandoned,
    EngineCallError,
    EngineTimeout,
    EngineUnavailable,
    Failure,
    RejectedByEngine,
)
from tandem.bls.triton.background import log_exception
from tandem.contract.errors import CODES, ErrorCode, split_code

KEEP_SECONDS = 1.0
# Maximum number of threads that block in a model that doesn't respond. Further calls are rejected.
MAX_ABANDONED_CALLS = 32

MAX_LINE = 1_000  # characters of an error
REJECTIONS: frozenset[ErrorCode] = frozenset({"INVALID_ARG", "UNSUPPORTED"})
# Triton's errors about its shared memory contain the name of the region. A client that knows the
# name could register the region for itself.
REGION = re.compile("shared memory (pool size for key|key|region) '|_backend_shm_region_")
# Triton's messages for a call to a model whose process has ended or hangs, or that is unloaded, and
# for all calls while Triton shuts down. They have no code.
UNAVAILABLE = re.compile(
    r"Stub process '[^']*' is not healthy|.*: (.* Model '[^']*' is|Server) not ready\.?$"
)
NO_MEMORY = (
    "Triton's shared memory (/dev/shm) is full; enlarge it, for example with docker's --shm-size"
)


class Calls:
    """Makes the BLS calls of one process. Thread-safe.

    Keeps alive the objects that must outlive a call, and counts the threads that are blocked in
    abandoned calls. abandoned: number of abandoned calls, for every model that ever had one.
    """

    def __init__(self) -> None:
        self.abandoned: Counter[str] = Counter()
        self._kept: deque[tuple[float, Any]] = deque()
        self._lock = threading.Lock()

    def infer(
        self, model: str, request: Any, *, decoupled: bool = False, may_be_empty: bool = False
    ) -> Any:
        """Make a call and return the response that has outputs.

        decoupled: whether the model is decoupled; such a call needs an additional thread.
        may_be_empty: whether to accept a response without outputs. Raises EngineCallError with the
        model's message if the call failed, and RejectedByEngine if the model rejected it.
        """
        try:
            if not decoupled:
                return _response_with_outputs(model, [request.exec()], may_be_empty)
            responses = request.exec(decoupled=True)
        except pb_utils.TritonModelException as error:
            raise engine_error(model, error) from error
        try:
            return _response_with_outputs(model, responses, may_be_empty)
        finally:
            self._keep_alive(responses)

    def count_abandoned(self, model: str, by: int) -> None:
        """Add to a model's count: 1 for an abandoned call, -1 after an abandoned call returned."""
        with self._lock:
            self.abandoned[model] += by

    def _keep_alive(self, responses: Any) -> None:
        now = time.monotonic()
        forgotten = []  # freed after the lock is released: an unfinished iterator waits for its end
        with self._lock:
            self._kept.append((now + KEEP_SECONDS, responses))
            while self._kept and self._kept[0][0] < now:
                forgotten.append(self._kept.popleft())


def engine_error(model: str, message: object, code: ErrorCode = "INTERNAL") -> EngineCallError:
    """Return the error of a failed call, with a message for clients.

    message: error message from the model. code: code from Triton; a code at the start of the
    message takes precedence. Only the first line of the message is used, because Triton and engines
    append a stack trace, which they also log. A message from another machine may be long.
    """
    first = str(message).strip().partition("\n")[0]
    leading_code, field, line = split_code(first[:MAX_LINE])
    code = leading_code or ("UNAVAILABLE" if UNAVAILABLE.match(line) else code)
    if REGION.search(line) is not None:
        line = NO_MEMORY
        log_exception(f"failed to call model '{model}'", RuntimeError(str(message)))
    return (RejectedByEngine if code in REJECTIONS else EngineCallError)(model, line, code, field)


def _response_with_outputs(model: str, responses: Iterable[Any], may_be_empty: bool) -> Any:
    """Return the response that has outputs. Python models may add an empty response."""
    response = None
    for response in responses:
        if response.has_error():
            error = response.error()
            raise engine_error(model, error.message(), _code(error))
        if response.output_tensors():
            return response
    if may_be_empty and response is not None:
        return response
    raise EngineCallError(model, "it ended the call without an answer")


def _code(error: Any) -> ErrorCode:
    """Return the code of an error from Triton. Before Triton 25.04 it is always INTERNAL."""
    for code in CODES:
        if error.code() == getattr(pb_utils.TritonError, code):
            return code
    return "INTERNAL"


class PendingCall(NamedTuple):
    """A call that blocks its thread. Times are in seconds of the monotonic clock."""

    model: str
    request_id: str
    timeout: float
    deadline: float


class CallSlot:
    """Makes blocking calls, one at a time. Other threads may abandon the current call.

    call: the current call. interruption: if set, new calls raise it.
    """

    def __init__(self, calls: Calls) -> None:
        self.call: PendingCall | None = None
        self.interruption: Failure | None = None
        self._calls = calls
        self._lock = threading.Lock()

    def infer(
        self,
        model: str,
        request: Any,
        *,
        timeout: float,
        request_id: str = "",
        decoupled: bool = False,
        may_be_empty: bool = False,
    ) -> Any:
        """Make a call and return its response (see ``Calls.infer``). timeout: seconds.

        Raises Abandoned if another thread abandoned the call, and EngineUnavailable if too many
        calls of the model were abandoned.
        """
        if self._calls.abandoned[model] >= MAX_ABANDONED_CALLS:
            raise EngineUnavailable(
                model, f"{MAX_ABANDONED_CALLS} of its calls never returned; restart the server"
            )
        call = PendingCall(model, request_id, timeout, time.monotonic() + timeout)
        with self._lock:
            self.call = call
        try:
            if self.interruption is not None:
                raise self.interruption
            return self._calls.infer(model, request, decoupled=decoupled, may_be_empty=may_be_empty)
        finally:
            with self._lock:
                is_current = self.call is call
                if is_current:
                    self.call = None
            if not is_current:
                self._calls.count_abandoned(model, -1)
                raise Abandoned

    def check(self, now: float) -> EngineTimeout | None:
        """Abandon the call if its deadline has passed. Return the error of that call, or None."""
        with self._lock:
            call = self.call
            if call is None or now < call.deadline:
                return None
            self.call = None
        self._calls.count_abandoned(call.model, +1)
        return EngineTimeout(call.model, call.timeout)
