"""Calls models for one sequence. The calling thread blocks, and other threads can stop the call."""

from __future__ import annotations

import time
import uuid
from functools import partial

from tandem.bls.errors import EngineCallError, EngineTimeout, Failure
from tandem.bls.ports import EngineCall, EngineResult, EngineRole
from tandem.bls.request import Request
from tandem.bls.triton.engine_calls.call_slot import CallSlot
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.request_builder import RequestBuilder
from tandem.bls.triton.engine_calls.result_reader import read_result

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
        # A remote engine sends calls to one replica if their ids agree up to the last `-`.
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
