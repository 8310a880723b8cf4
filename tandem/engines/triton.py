"""An engine as a model of Triton's Python backend: the only module here that imports Triton."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter as PyCounter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.contract.errors import ErrorCode, prefix_code
from tandem.contract.metric import Metric
from tandem.engines.decoding import decode, flag
from tandem.engines.encoding import Sent, encode
from tandem.engines.engine import (
    COMPUTED_TOKENS,
    NO_IDS,
    REMOTE_CALLS,
    Engine,
    EngineRequest,
    EngineResponse,
    ForwardedCall,
    Forwarder,
)
from tandem.engines.errors import EngineError, RequestError, ResponseError, UnsupportedError
from tandem.engines.kinds import excludes_input, load_engine
from tandem.engines.shared_logits import SharedLogitsWriter, read_shared_logits

SHARED_MEMORY = Path("/dev/shm")
SMALL_BYTES = 2**20  # a process always has this much memory
SPARE_BYTES = 2**20  # for the rest of the message, and for other messages that grow meanwhile
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
Labels: TypeAlias = tuple[tuple[str, str], ...]
log = logging.getLogger(__name__)


class EngineModel:
    """A Triton model for any engine, decoupled or not. The parameter `engine` selects the engine.

    execute() only passes calls to the engine and returns the answers that are ready immediately.
    The engine's thread sends the others. The final flag always comes with a response, because a
    flag alone crashes callers in this version of Triton.
    """

    def load_engine(self, model_config: dict[str, Any], folder: Path) -> Engine | Forwarder:
        return load_engine(model_config, folder)

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine. Raises TritonModelException with a one-line message."""
        logging.getLogger("tandem.engines").addHandler(_TritonLog())
        self._name = args["model_name"]
        model_config = json.loads(args["model_config"])
        self._decoupled = model_config.get("model_transaction_policy", {}).get("decoupled", False)
        self._excludes_input = excludes_input(model_config)
        folder = Path(args["model_repository"]) / args["model_version"]
        try:
            self._engine = self.load_engine(model_config, folder)
        except (EngineError, ValueError) as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._logits_writer = SharedLogitsWriter()
        of_model = ("model", self._name)
        self._metrics = [
            _Counter(COMPUTED_TOKENS, lambda: {(of_model,): self._engine.computed_tokens})
        ]
        if isinstance(engine := self._engine, Forwarder):
            self._metrics.append(
                _Counter(
                    REMOTE_CALLS,
                    lambda: {
                        (of_model, ("replica", name), ("outcome", outcome)): count
                        for (name, outcome), count in engine.counts().items()
                    },
                )
            )
        # If this process stalls while loading, Triton may never notice that it finished. `tandem
        # up` detects that: this line shows up in the log, but Triton's own "loaded" line doesn't.
        print(f"tandem: engine '{self._name}' has loaded", flush=True)  # noqa: T201 into Triton's log

    def execute(self, requests: Iterable[Any]) -> list[Any] | None:
        """Start each request. Return the answers that are ready, and None for the others."""
        calls = [self._start(request) for request in requests]
        return None if self._decoupled else [call.take_ready_response() for call in calls]

    def finalize(self) -> None:
        self._engine.close()
        self._logits_writer.close()
        for metric in self._metrics:
            metric.close()

    def _start(self, request: Any) -> _Call:
        call = _Call(request, self._logits_writer, decoupled=self._decoupled)
        try:
            self._submit(request, call)
        except RequestError as error:
            call.fail(str(error), error.code, error.field)
        except Exception as error:
            log.exception("failed to start a call")
            call.fail(f"the call failed: {type(error).__name__}", "INTERNAL")
        return call

    def _submit(self, request: Any, call: _Call) -> None:
        arrival_ns, request_id = time.time_ns(), request.request_id()
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if flag(arrays, tensors.STOP):
            if not request_id:
                raise RequestError(
                    f"{tensors.STOP} requires the request id of the call to stop", tensors.STOP
                )
            self._engine.stop(request_id)
            call.respond(EngineResponse())
            return
        _read_draft_logits(arrays)
        if flag(arrays, tensors.STREAMING) and not self._decoupled:
            raise UnsupportedError(
                f"{tensors.STREAMING} requires `decoupled: true` in the engine's profile",
                tensors.STREAMING,
            )
        if isinstance(self._engine, Forwarder):
            seconds = request.timeout() / 1e6
            self._engine.forward(call.forwarded(arrays, request_id, seconds))
            return
        call.request = decode(arrays, request_id, arrival_ns, exclude_input=self._excludes_input)
        self._engine.submit(call.request, call.respond)


def _read_draft_logits(arrays: dict[str, NDArray[Any]]) -> None:
    """Replace the shared-memory handle with the draft tokens' logits.

    If they are gone, fall back to verifying by token ID, which is just as exact.
    """
    if tensors.SHARED_LOGITS_HANDLE not in arrays:
        return
    length = arrays.get(tensors.DRAFT_INPUT_IDS, NO_IDS).shape[-1]
    logits = read_shared_logits(arrays.pop(tensors.SHARED_LOGITS_HANDLE), length)
    if logits is None:
        arrays.pop(tensors.DRAFT_ACCEPTANCE_THRESHOLD, None)
    else:
        arrays[tensors.DRAFT_LOGITS] = logits[np.newaxis]


class _Call:
    """Converts a call's answers to Triton responses, and returns them from execute() or sends them.

    Sending blocks until the server has taken the response, which costs a round trip between the
    processes. A response that is ready before execute() returns avoids that. Decoupled models can't
    return responses.

    Attributes:
        request: the decoded request; empty until it is decoded.

    """

    def __init__(self, request: Any, writer: SharedLogitsWriter, *, decoupled: bool) -> None:
        self.request = EngineRequest("", NO_IDS, max_new_tokens=0)
        self._wanted = frozenset(request.requested_output_names())
        self._sent = Sent()
        self._sender = request.get_response_sender()
        self._logits_writer = writer
        self._in_execute = not decoupled
        self._response: Any = None
        self._lock = threading.Lock()

    def respond(self, answer: EngineResponse) -> None:
        """Return or send an answer.

        If the response can't be built, an error replaces it and ends the call. Then raises
        ResponseError unless the answer was the final one.
        """
        if answer.error is not None:
            self.fail(answer.error, answer.code)
            return
        self._respond(
            lambda: encode(self.request, answer, self._wanted, self._sent),
            answer.generation_logits,
            final=answer.final,
        )

    def forwarded(
        self, arrays: Mapping[str, NDArray[Any]], request_id: str, timeout: float
    ) -> ForwardedCall:
        """Return the call to a remote engine, which returns logits instead of a handle."""
        handle, logits = tensors.SHARED_LOGITS_HANDLE, tensors.GENERATION_LOGITS
        outputs = sorted({logits if name == handle else name for name in self._wanted})
        respond = self._respond_tensors
        return ForwardedCall(arrays, outputs, request_id, timeout, respond, self.fail)

    def _respond_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Return or send the response of a remote engine."""
        wanted = {name: array for name, array in arrays.items() if name in self._wanted}
        self._respond(lambda: wanted, arrays.get(tensors.GENERATION_LOGITS), final=True)

    def _respond(
        self,
        build: Callable[[], dict[str, NDArray[Any]]],
        logits: NDArray[np.float32] | None,
        *,
        final: bool,
    ) -> None:
        """Return or send a response with the outputs that `build` returns.

        logits: of the new tokens [..., n, vocab_size], for the handle.
        """
        try:
            arrays = build()
            if tensors.SHARED_LOGITS_HANDLE in self._wanted and logits is not None and logits.size:
                rows = logits.reshape(-1, logits.shape[-1])
                arrays[tensors.SHARED_LOGITS_HANDLE] = self._logits_writer.write(rows)[None]
            check_response_memory(sum(array.nbytes for array in arrays.values()))
            outputs = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
            response = pb_utils.InferenceResponse(output_tensors=outputs)
        except Exception as error:
            message = str(error)
            if not isinstance(error, ResponseError):
                log.exception("failed to build a response")
                message = f"failed to build its response: {type(error).__name__}"
            self.fail(message, "INTERNAL")
            if not final:
                raise ResponseError(message) from error
            return
        self._deliver(response, final=final)

    def fail(self, message: str, code: ErrorCode, field: str = "") -> None:
        """End the call with an error. field: name of the input that is wrong."""
        self._deliver(self._error(message, code, field), final=True)

    def take_ready_response(self) -> Any:
        """Return the response if it is ready. If not, it will be sent later."""
        with self._lock:
            self._in_execute = False
            return self._response

    def _deliver(self, response: Any, *, final: bool) -> None:
        """Send a response, or keep it for execute() to return.

        If a non-final response can't be sent, sends a final error before re-raising. After a failed
        final response, nothing can be sent, because Triton has already closed the sender.
        Therefore, `check_response_memory` runs before sending.
        """
        with self._lock:
            if self._in_execute:
                self._response = response
                return
        try:
            self._sender.send(response, flags=FINAL if final else 0)
        except Exception:
            if not final:
                error = self._error("failed to send its response; see the server's log", "INTERNAL")
                self._sender.send(error, flags=FINAL)
            raise

    def _error(self, message: str, code: ErrorCode, field: str = "") -> Any:
        number = getattr(pb_utils.TritonError, code)  # undefined while modules are imported
        error = pb_utils.TritonError(prefix_code(code, message, field), number)
        return pb_utils.InferenceResponse(error=error)


class _Counter:
    """A counter on `/metrics` with a value for each set of labels.

    Each update costs a round trip to the server, which slows all other threads of this process. So
    a separate thread updates the counter periodically, instead of after every call.
    """

    _PERIOD_SECONDS = 0.1

    def __init__(self, counter: Metric, counts: Callable[[], Mapping[Labels, int]]) -> None:
        self._family = pb_utils.MetricFamily(  # a metric is deleted with its family
            name=counter, description=counter.help, kind=pb_utils.MetricFamily.COUNTER
        )
        self._counts = counts
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        metrics: dict[Labels, Any] = {}
        reported: PyCounter[Labels] = PyCounter()
        while not self._closing.wait(self._PERIOD_SECONDS):
            try:
                for labels, count in self._counts().items():
                    if labels not in metrics:
                        metrics[labels] = self._family.Metric(labels=dict(labels))
                    if count > reported[labels]:
                        metrics[labels].increment(count - reported[labels])
                        reported[labels] = count
            except Exception:  # noqa: BLE001 the server's shared memory is temporarily full
                continue


class _TritonLog(logging.Handler):
    """Sends the engines' log records to the server's log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = pb_utils.Logger.ERROR if record.levelno >= logging.ERROR else pb_utils.Logger.INFO
        pb_utils.Logger.log(self.format(record), level)


def check_response_memory(num_bytes: int) -> None:
    """Raise ResponseError if a response of this size doesn't fit into shared memory.

    Triton's Python backend closes a response's sender before it copies the response to shared
    memory. A response that doesn't fit is lost, and its caller hangs. So this check must come
    before sending. It ignores shared memory that the process has allocated but doesn't use, because
    that can't be queried.
    """
    if num_bytes <= SMALL_BYTES:
        return
    try:
        system = os.statvfs(SHARED_MEMORY)
    except OSError:
        return
    free = system.f_bavail * system.f_frsize
    if num_bytes + SPARE_BYTES > free:
        raise ResponseError(
            f"its response needs {num_bytes / 2**20:.0f} MiB of shared memory; "
            f"{SHARED_MEMORY} has {free / 2**20:.0f} MiB free; request fewer logits, or enlarge it"
        )
