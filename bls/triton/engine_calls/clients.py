"""Clients of the engines, which all sequences share."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from tandem.bls.errors import EngineCallError
from tandem.bls.ports import EngineCall, EngineRole
from tandem.bls.settings import MAX_AHEAD_THREADS, EngineSettings, LoopSettings
from tandem.bls.triton.background import log_exception, run_in_background
from tandem.bls.triton.engine_calls.calls import Calls
from tandem.bls.triton.engine_calls.result_reader import REQUIRED
from tandem.bls.triton.engine_calls.triton_tensors import row, scalar
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
