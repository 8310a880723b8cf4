"""An engine as a model of Triton's Python backend: the only module here that imports Triton."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tandem.contract import engine as tensors
from tandem.contract.errors import ErrorCode, coded
from tandem.engines.decoding import count, decode, flag
from tandem.engines.encoding import encode, nothing
from tandem.engines.engine import Engine, Preparing, Send
from tandem.engines.errors import EngineError, RequestError, ResponseError, UnsupportedError
from tandem.engines.load import excludes_input, load_engine
from tandem.engines.metric_names import COMPUTED_TOKENS
from tandem.engines.request import NO_IDS, EngineRequest, EngineResponse
from tandem.engines.shared_logits import SharedLogitsReader, SharedLogitsWriter

SHARED_MEMORY = Path("/dev/shm")
SMALL_BYTES = 2**20  # a process always has this much memory
SPARE_BYTES = 2**20  # for the rest of the message, and for other messages that grow meanwhile
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
log = logging.getLogger(__name__)


class EngineModel:
    """A Triton model for any engine, decoupled or not. The parameter `engine` selects the engine.

    execute() only passes calls to the engine and returns the answers that are ready immediately.
    The engine's thread sends the others. The final flag always comes with a response, because a
    flag alone crashes callers in this version of Triton.
    """

    def load_engine(self, model_config: dict[str, Any], folder: Path) -> Engine:
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
            raise pb_utils.TritonModelException(f"model '{self._name}': {error}") from error
        self._logits_writer, self._logits_reader = SharedLogitsWriter(), SharedLogitsReader()
        self._metric = _ComputedTokens(self._name, lambda: self._engine.computed_tokens)
        # If this process pauses while it loads, Triton waits for it forever. `tandem up` notices
        # that Triton's own line doesn't follow this one.
        print(f"tandem: engine '{self._name}' has loaded", flush=True)  # noqa: T201 into Triton's log

    def execute(self, requests: Iterable[Any]) -> list[Any] | None:
        """Start each request. Return the answers that are ready, and None for the others."""
        ways = [self._start(request) for request in requests]
        return None if self._decoupled else [way.leave_execute() for way in ways]

    def finalize(self) -> None:
        self._engine.close()
        self._logits_writer.close()
        self._metric.close()

    def _start(self, request: Any) -> _WayBack:
        now = time.time_ns()
        way = _WayBack(self._name, request.get_response_sender(), decoupled=self._decoupled)
        try:
            arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            wanted = request.requested_output_names()
            if flag(arrays, tensors.STOP):
                self._stop(request.request_id())
                way.send(_response(nothing(wanted)), final=True)
                return way
            if tensors.UNREAD_LOGITS_HANDLE in arrays:
                self._logits_writer.take_back(arrays.pop(tensors.UNREAD_LOGITS_HANDLE))
            self._take_shared_logits(arrays, way)
            call = decode(arrays, request.request_id(), now, exclude_input=self._excludes_input)
            self._check_streaming(call)
            respond = _Responder(self._name, call, way, wanted, self._logits_writer)
            self._engine.submit(call, respond)
        except RequestError as error:
            way.send(_error(self._name, str(error), error.code), final=True)
        except Exception as error:
            log.exception("failed to start a call")
            message = f"the call failed: {type(error).__name__}"
            way.send(_error(self._name, message, "INTERNAL"), final=True)
        return way

    def _take_shared_logits(self, arrays: dict[str, NDArray[Any]], way: _WayBack) -> None:
        """Replace a handle with the logits of the draft tokens, starting at the handle's row.

        If the logits are gone, the draft is verified by ids, which is equally exact.
        """
        row = count(arrays, tensors.SHARED_LOGITS_ROW)
        arrays.pop(tensors.SHARED_LOGITS_ROW, None)
        if tensors.SHARED_LOGITS_HANDLE not in arrays:
            return
        shared = self._logits_reader.read(arrays.pop(tensors.SHARED_LOGITS_HANDLE))
        if shared is None:
            arrays.pop(tensors.DRAFT_ACCEPTANCE_THRESHOLD, None)
            return
        way.on_final(shared.give_back)
        length = arrays.get(tensors.DRAFT_INPUT_IDS, NO_IDS).shape[-1]
        arrays[tensors.DRAFT_LOGITS] = shared.logits[np.newaxis, row : row + length]

    def _stop(self, request_id: str) -> None:
        if not request_id:
            raise RequestError(f"{tensors.STOP} requires the request id of the call to stop")
        self._engine.stop(request_id)

    def _check_streaming(self, call: EngineRequest) -> None:
        if call.streaming and not self._decoupled:
            raise UnsupportedError(
                f"{tensors.STREAMING} requires `decoupled: true` in the engine's profile"
            )


class _Responder(Preparing):
    """Converts a call's answers to Triton responses."""

    def __init__(
        self,
        model: str,
        call: EngineRequest,
        way: _WayBack,
        wanted: list[str],
        writer: SharedLogitsWriter,
    ) -> None:
        self._model = model
        self._call = call
        self._way = way
        self._wanted = wanted
        self._logits_writer = writer
        self._handle: NDArray[Any] | None = None  # handle of unsent logits

    def __call__(self, answer: EngineResponse) -> None:
        self.prepare(answer)(answer.usage.last_token_time_ns)

    def prepare(self, answer: EngineResponse) -> Send:
        """Build the response. Sending it fills in the time of its last token.

        If the response can't be built, an error replaces it and ends the call. Sending that error
        raises ResponseError unless the answer was the final one.
        """
        if answer.error is not None:
            return self._sends_error(answer.error, answer.code, final=answer.final)
        try:
            arrays = self._arrays(answer)
            check_response_memory(sum(array.nbytes for array in arrays.values()))
            response = _response(arrays.items())
        except ResponseError as error:
            return self._sends_error(str(error), error.code, final=answer.final)
        except Exception as error:
            log.exception("failed to build a response")
            message = f"failed to build its response: {type(error).__name__}"
            return self._sends_error(message, "INTERNAL", final=answer.final)
        last_token = arrays.get(tensors.LAST_TOKEN_TIME_NS)

        def send(last_token_ns: int) -> None:
            if last_token is not None:
                last_token[...] = last_token_ns  # a tensor shares its array's memory until sent
            self._handle = None
            self._way.send(response, final=answer.final)

        return send

    def _arrays(self, answer: EngineResponse) -> dict[str, NDArray[Any]]:
        arrays = dict(encode(self._call, answer, self._wanted))
        logits = answer.generation_logits
        if self._handle is not None:  # the call was stopped: this answer replaces the unsent one
            self._logits_writer.take_back(self._handle)
            self._handle = None
        if tensors.SHARED_LOGITS_HANDLE in self._wanted and logits is not None and len(logits):
            self._handle = self._logits_writer.write(logits)
            arrays[tensors.SHARED_LOGITS_HANDLE] = self._handle[None]
        return arrays

    def _sends_error(self, message: str, code: ErrorCode, *, final: bool) -> Send:
        def send(_last_token_ns: int) -> None:
            self._way.send(_error(self._model, message, code), final=True)
            if not final:
                raise ResponseError(message)

        return send


class _WayBack:
    """Delivers a call's responses, either as the result of execute() or by sending them.

    Sending blocks until the server has taken the response, which costs a round trip between the
    processes. A response that is ready before execute() returns avoids that. Decoupled models can't
    return responses.
    """

    def __init__(self, model: str, sender: Any, *, decoupled: bool) -> None:
        self._sender = sender
        self._model = model
        self._returns = not decoupled
        self._response: Any = None
        self._ended: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def on_final(self, ended: Callable[[], None]) -> None:
        """Run `ended` with the final response, when the engine is done with the call."""
        self._ended = ended

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response, or keep it for execute() to return.

        Raises the sender's errors. If a response before the final one fails, a final error is sent
        first. If the final one fails, nothing can be sent, because Triton has already closed the
        sender. Therefore, `check_response_memory` runs before sending.
        """
        if final:
            self._end()
        with self._lock:
            if self._returns:
                self._response = response
                return
        try:
            self._sender.send(response, flags=FINAL if final else 0)
        except Exception:
            if not final:
                self._end()
                message = "failed to send its response; see the server's log"
                self._sender.send(_error(self._model, message, "INTERNAL"), flags=FINAL)
            raise

    def _end(self) -> None:
        """Release the logits that the engine has read. Later calls have no effect."""
        ended, self._ended = self._ended, None
        if ended:
            ended()

    def leave_execute(self) -> Any:
        """Return the response if it is ready. A later one will be sent."""
        with self._lock:
            self._returns = False
            return self._response


class _ComputedTokens:
    """Counts the tokens that an engine ran through its model.

    Each update costs a round trip to the server, which slows all other threads of this process. So
    a separate thread updates the counter periodically, instead of after every call.
    """

    _PERIOD_SECONDS = 0.1

    def __init__(self, model: str, count: Callable[[], int]) -> None:
        family = pb_utils.MetricFamily(
            name=COMPUTED_TOKENS,
            description=COMPUTED_TOKENS.help,
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self._family = family  # a metric is deleted with its family
        self._metric = family.Metric(labels={"model": model})
        self._count = count
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        reported = 0
        while not self._closing.wait(self._PERIOD_SECONDS):
            count = self._count()
            if count > reported:
                try:
                    self._metric.increment(count - reported)
                except Exception:  # noqa: BLE001 the server's shared memory is temporarily full
                    continue
                reported = count


class _TritonLog(logging.Handler):
    """Sends the engines' log records to the server's log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = pb_utils.Logger.ERROR if record.levelno >= logging.ERROR else pb_utils.Logger.INFO
        pb_utils.Logger.log(self.format(record), level)


def _response(arrays: Iterable[tuple[str, NDArray[Any]]]) -> Any:
    outputs = [pb_utils.Tensor(name, array) for name, array in arrays]
    return pb_utils.InferenceResponse(output_tensors=outputs)


def _error(model: str, message: str, code: ErrorCode) -> Any:
    number = getattr(pb_utils.TritonError, code)  # undefined while modules are imported
    error = pb_utils.TritonError(coded(code, f"model '{model}': {message}"), number)
    return pb_utils.InferenceResponse(error=error)


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
