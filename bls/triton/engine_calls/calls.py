"""BLS calls, made so that Triton survives them.

Everything that is known to go wrong between a BLS model and the models it calls is dealt with here
and nowhere else (measured with Triton 2.51):

- Nothing streams into a model. A thread that is woken by a second response waits for the GIL with
  its iterator's mutex held; one more response then blocks the thread that hands out responses, with
  the mutex of all iterators held; a call that returns meanwhile wants that one, with the GIL held:
  the model's process stands still for ever (still so upstream in 2026-06). An error after a first
  response is lost on its way besides, since its id is never written (fixed in r25.04).
- A decoupled model may end a call by an empty response behind its answer. An iterator that saw
  more than one response crashes the caller when it is freed as its last response arrives (fixed
  upstream in r25.01): it is kept alive for a second after its answer.
- A call cannot be cancelled, and dropping the iterator stops nothing: a second call with the
  same request id and ``stop`` informs the engine.
- An error loses its code (fixed in r25.04): models of ours write it before the line
  (``contract.errors``).
- ``trace=request.trace()`` crashes decoupled models: no call passes it.

The hazard of the way back, to the client, is guarded in ``bls.triton.responses.sender``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import EngineCallError
from tandem.bls.triton.background import log_exception
from tandem.bls.triton.engine_calls.failures import NO_MEMORY, failure
from tandem.contract.errors import CODES, ErrorCode

KEEP_SECONDS = 1.0


class Calls:
    """Makes BLS calls and keeps what must outlive them."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Any]] = deque()
        self._lock = threading.Lock()

    def infer(
        self, model: str, request: Any, *, decoupled: bool = False, may_be_empty: bool = False
    ) -> Any:
        """Make a call that has one answer; return that response.

        decoupled: whether the model is; it must be said, and costs the call another thread.
        may_be_empty: whether a response without tensors is an answer, where no other one came.
        Raises EngineCallError with the model's own words where the call failed, EngineRefused
        where they say that the call itself is at fault.
        """
        try:
            if not decoupled:
                return _answer(model, [request.exec()], may_be_empty)
            responses = request.exec(decoupled=True)
        except pb_utils.TritonModelException as error:
            raise _failure(model, error) from error
        try:
            return _answer(model, responses, may_be_empty)
        finally:
            self._keep(responses)

    def _keep(self, responses: Any) -> None:
        now = time.monotonic()
        forgotten = []  # freed without the lock: one that has not ended waits for its end
        with self._lock:
            self._kept.append((now + KEEP_SECONDS, responses))
            while self._kept and self._kept[0][0] < now:
                forgotten.append(self._kept.popleft())


def _answer(model: str, responses: Iterable[Any], may_be_empty: bool) -> Any:
    """The response that holds the answer; Python models may add an empty one."""
    response = None
    for response in responses:
        if response.has_error():
            error = response.error()
            raise _failure(model, error.message(), _code(error))
        if response.output_tensors():
            return response
    if may_be_empty and response is not None:
        return response
    raise EngineCallError(model, "it ended the call without an answer")


def _failure(model: str, said: object, code: ErrorCode = "INTERNAL") -> EngineCallError:
    """The error for the caller; what no client may read is in the log."""
    error = failure(model, said, code)
    if error.what == NO_MEMORY:
        log_exception(f"model '{model}' could not be called", RuntimeError(str(said)))
    return error


def _code(error: Any) -> ErrorCode:
    """The code of Triton's own error, which is always INTERNAL before Triton 25.04."""
    for code in CODES:
        if error.code() == getattr(pb_utils.TritonError, code):
            return code
    return "INTERNAL"
