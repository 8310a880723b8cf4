"""Calls to the engines, including timeouts, stops and failures.

`EngineClients` are shared by all sequences. A `SequenceCaller` makes the calls of one sequence, one
at a time, and other threads can stop or abandon them. An `AheadThread` drafts ahead meanwhile.
After a failure, `DraftEngineHealth` pauses the calls to the draft engine until a probe succeeds.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tandem.bls.admission import Reservation
from tandem.bls.drafters.drafter import DrafterHealth
from tandem.bls.errors import (
    Abandoned,
    Cancelled,
    EngineCallError,
    EngineTimeout,
    Failure,
    Overloaded,
    ServingError,
)
from tandem.bls.ports import NO_TOKENS, EngineCall, EngineResult, EngineRole
from tandem.bls.request import Request
from tandem.bls.settings import MAX_AHEAD_THREADS, EngineSettings, LoopSettings
from tandem.bls.triton.background import log_exception, log_info, log_warning, run_in_background
from tandem.bls.triton.calls import Calls, CallSlot
from tandem.bls.triton.engine_tensors import REQUIRED, RequestBuilder, read_result, row, scalar
from tandem.contract import engine as tensors

# Number of context tokens that a draft engine must process within its timeout. Draft engines
# process thousands of tokens per second. A slower one isn't worth calling.
CONTEXT_TOKENS = 2048
# Threads per engine that send `stop`. An engine that hangs blocks them permanently, because it
# doesn't answer a `stop` either.
STOP_THREADS = 4


class EngineClient:
    """Stops and probes the target or the draft engine. Thread-safe.

    folder: the version folder of the loop's model, which may contain weights of LoRA adapters.
    """

    def __init__(
        self,
        role: EngineRole,
        settings: EngineSettings,
        loop: LoopSettings,
        calls: Calls,
        folder: Path = Path(),
    ) -> None:
        self.is_draft = role == "draft"
        self.settings = settings
        self.loop = loop
        self.folder = folder
        self.logits_output = (
            tensors.SHARED_LOGITS_HANDLE
            if self.is_draft and loop.shared_logits
            else tensors.GENERATION_LOGITS
        )
        self._calls = calls
        self._stopped_ids: queue.SimpleQueue[str] = queue.SimpleQueue()
        for _ in range(STOP_THREADS):
            run_in_background(self._send_stops)

    def timeout_of(self, call: EngineCall) -> float:
        """Return the timeout of a call in seconds.

        A draft call gets the draft engine's timeout once per 2,048 context tokens, but at least
        once and at most the target's timeout. Most calls process only a few new tokens. But the
        first call of an answer and a call after an eviction process the whole context, so a slow
        call doesn't mean that the engine is unhealthy. A draft that takes longer than the target's
        timeout is useless.
        """
        if call.in_engine:
            return self.loop.request_timeout
        timeout = self.settings.timeout
        if not self.is_draft:
            return timeout
        whole_context = timeout * len(call.context) / CONTEXT_TOKENS
        return max(timeout, min(self.loop.target.timeout, whole_context))

    def stop(self, request_id: str) -> None:
        """Ask the engine to stop the call with this id. Doesn't block."""
        self._stopped_ids.put(request_id)

    def probe(self) -> None:
        """Make the cheapest real call: one new token after one context token."""
        self._infer_smallest("tandem-probe", scalar(tensors.RUNTIME_TOP_K, 1))

    def _send_stops(self) -> None:
        while True:
            request_id = self._stopped_ids.get()
            try:
                self._infer_smallest(request_id, scalar(tensors.STOP, True))
            except EngineCallError:
                continue  # the call has ended or will time out
            except Exception as error:  # noqa: BLE001  the next call must still be stopped
                log_exception("failed to stop an engine call", error)

    def _infer_smallest(self, request_id: str, purpose: Any) -> None:
        """Make a call with ``purpose`` and as few other inputs as possible."""
        request = pb_utils.InferenceRequest(
            model_name=self.settings.model,
            request_id=request_id,
            requested_output_names=REQUIRED,
            timeout=int(1e6 * self.settings.timeout),
            inputs=[
                row(tensors.INPUT_IDS, np.zeros(1, np.int32)),
                scalar(tensors.INPUT_LENGTHS, 1),
                scalar(tensors.REQUEST_OUTPUT_LEN, 1),
                purpose,
            ],
        )
        self._calls.infer(self.settings.model, request, decoupled=self.settings.decoupled)


class EngineClients:
    """The clients of a deployment's engines, and the state that their calls share.

    folder: see ``EngineClient``.
    """

    def __init__(self, settings: LoopSettings, folder: Path = Path()) -> None:
        self.settings = settings
        self.calls = Calls()
        self.ahead_threads = threading.BoundedSemaphore(MAX_AHEAD_THREADS)
        roles: dict[EngineRole, EngineSettings | None] = {
            "target": settings.target,
            "draft": settings.draft,
        }
        self.engines = {
            role: EngineClient(role, engine, settings, self.calls, folder)
            for role, engine in roles.items()
            if engine
        }

    def stop(self, model: str, request_id: str) -> None:
        """Ask a model to stop a call. Does nothing if the model isn't an engine."""
        for engine in self.engines.values():
            if engine.settings.model == model:
                engine.stop(request_id)


class DraftEngineHealth:
    """The `DrafterHealth` of the draft engine, shared by all requests.

    After a failure, probes are sent until one of them succeeds within the timeout of a draft call.
    If the engine's process has died, a probe never returns, so the pause lasts until the server
    restarts.

    engine: None if the deployment has no draft engine. pause: seconds before each probe.
    """

    def __init__(self, engine: EngineClient | None, pause: float) -> None:
        self._engine = engine
        self._pause = pause
        self._lock = threading.Lock()
        self._last_rejection = ""
        self.available = engine is not None

    def failed(self, error: EngineCallError) -> None:
        """Pause calls to the engine. The first failure is logged and starts the probes."""
        engine = self._engine
        with self._lock:
            if engine is None or not self.available:
                return
            self.available = False
        log_warning(f"requests continue without the draft model: {error}")
        run_in_background(lambda: self._probe_until_healthy(engine), self._resume_without_probe)

    def rejected(self, error: Exception, without: str = "drafts") -> None:
        """Log why a request continues without drafts. Repetitions aren't logged."""
        line = f"a request continues without {without}: {error}"
        if self._last_rejection != line:
            self._last_rejection = line
            log_warning(line)

    def _resume_without_probe(self, _: Overloaded) -> None:
        """Resume calls without a probe, because no thread is free.

        The next failure starts another probe.
        """
        self.available = True

    def _probe_until_healthy(self, engine: EngineClient) -> None:
        while True:
            time.sleep(self._pause)
            began = time.monotonic()
            try:
                engine.probe()
            except EngineCallError:
                continue
            except Exception as error:  # noqa: BLE001  without this thread, drafts would stay off
                log_exception("failed to probe the draft engine", error)
                continue
            if time.monotonic() - began < engine.settings.timeout:
                break
        self.available = True
        log_info(f"model '{engine.settings.model}' responds again; it drafts again")


class SequenceDraftHealth:
    """The `DrafterHealth` of one sequence, which also needs blocks in the draft engine's cache."""

    def __init__(self, reservation: Reservation, health: DrafterHealth) -> None:
        self._reservation = reservation
        self._health = health

    @property
    def available(self) -> bool:
        return self._reservation.has_draft_blocks and self._health.available

    def failed(self, error: EngineCallError) -> None:
        self._health.failed(error)

    def rejected(self, error: Exception, without: str = "drafts") -> None:
        self._health.rejected(error, without)


# TensorRT-LLM's error if its cache doesn't have the call's LoRA adapter.
NOT_CACHED = "Please send LoRA weights with request"
STOP_INTERVAL = 1.0  # per call; an engine doesn't read a `stop` during a step


class SequenceCaller(CallSlot):
    """Calls models for a sequence. Other threads may stop or abandon the current call."""

    def __init__(self, clients: EngineClients, request: Request) -> None:
        super().__init__(clients.calls)
        self._clients = clients
        self._request = request
        self._builders: dict[EngineRole, RequestBuilder] = {}
        # A `stop` must stop only this call. Client ids aren't used, because two clients may choose
        # the same id.
        # A remote engine sends calls to one replica if their ids agree up to the last `-`. A vLLM
        # engine keeps KV blocks between calls whose ids agree up to the last period.
        self._name = f"tandem-{request.sequence_key}-{uuid.uuid4().hex}"
        self._calls_made = 0
        self._next_stop = 0.0

    def call_engine(self, call: EngineCall) -> EngineResult:
        """Call an engine and return its result. It is incomplete if the call was stopped."""
        engine = self._clients.engines[call.engine]
        if call.engine not in self._builders:
            self._builders[call.engine] = RequestBuilder(engine, self._request)
        builder = self._builders[call.engine]
        self._calls_made += 1
        request_id = f"{self._name}.{self._calls_made}"
        infer = partial(
            self.infer,
            engine.settings.model,
            request_id=request_id,
            timeout=engine.timeout_of(call),
            decoupled=engine.settings.decoupled,
        )
        began = time.monotonic()
        try:
            response = infer(builder.build(call, request_id))
        except EngineCallError as error:
            if NOT_CACHED not in error.what:
                raise
            response = infer(builder.build(call, request_id, with_weights=True))
        return read_result(response, call, time.monotonic() - began, engine.settings)

    def interrupt(self, reason: Failure) -> None:
        """Stop the current call. The calling thread still waits for its end.

        New calls raise ``reason`` until ``interruption`` is reset to None.
        """
        self.interruption, self._next_stop = reason, 0.0
        self._repeat_stop(time.monotonic())

    def check(self, now: float) -> EngineTimeout | None:
        """Stop the current call again if it was interrupted. Abandon and stop it if overdue.

        Returns the error of an abandoned call.
        """
        self._repeat_stop(now)
        call, error = self.call, super().check(now)
        if call is not None and error is not None:
            self._clients.stop(call.model, call.request_id)
        return error

    def _repeat_stop(self, now: float) -> None:
        """Repeat the `stop` of an interrupted call. The engine may have received it too early."""
        call = self.call
        if call is not None and self.interruption is not None and now >= self._next_stop:
            self._next_stop = now + STOP_INTERVAL
            self._clients.stop(call.model, call.request_id)


class AheadThread:
    """Makes draft calls on a thread, one at a time.

    If a call is overdue, the thread becomes ``lost``: it is abandoned and takes no more calls.
    """

    def __init__(self, clients: EngineClients, request: Request) -> None:
        self.lost = False
        self._clients = clients
        self._caller = SequenceCaller(clients, request)
        self._calls: queue.SimpleQueue[EngineCall | None] = queue.SimpleQueue()  # None: end
        self._result: Future[EngineResult] = Future()  # of the last call
        self._result.set_result(EngineResult(NO_TOKENS))

    @classmethod
    def start_if_free(cls, clients: EngineClients, request: Request) -> AheadThread | None:
        """Return a new running thread, or None if the loop or the system has no more threads."""
        if not clients.ahead_threads.acquire(blocking=False):
            return None
        thread = cls(clients, request)
        try:
            run_in_background(thread._work)
        except Overloaded:
            clients.ahead_threads.release()
            return None
        return thread

    def begin(self, call: EngineCall) -> Future[EngineResult] | None:
        """Start a call and return its future result. Stop the last call if it hasn't ended."""
        if self.lost:
            return None
        if not self._result.done():
            self.stop()
            return None
        self._caller.interruption = None  # an interruption applies to the last call only
        self._result = Future()
        self._calls.put(call)
        return self._result

    def stop(self) -> None:
        """Stop the current call. Its result then has no branches."""
        self._caller.interrupt(Cancelled())

    def check(self, now: float) -> None:
        """Abandon the thread if its call is overdue, and let another sequence draft ahead."""
        overdue = self._caller.check(now)
        if overdue is not None:
            self.lost = True
            self._clients.ahead_threads.release()
            self._result.set_exception(overdue)

    def close(self, then: Callable[[], None]) -> None:
        """End the thread. Calls ``then`` after its last call has ended."""
        self.stop()
        self._calls.put(None)
        self._result.add_done_callback(lambda _: then())

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                result = self._caller.call_engine(call)
                if self._caller.interruption is not None:
                    # No round reads these branches, and the call's duration is too short to learn
                    # from.
                    result = result._replace(branches=())
                self._result.set_result(result)
            except (ServingError, Cancelled) as error:
                self._result.set_exception(error)
            except Abandoned:  # `check` has set the result
                return
            except BaseException as error:  # noqa: BLE001  the sequence must still end
                log_exception("drafting ahead failed", error)
                self._result.set_result(EngineResult(NO_TOKENS))
        if not self.lost:
            self._clients.ahead_threads.release()
