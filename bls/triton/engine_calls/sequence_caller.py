"""Calls models for one sequence. The calling thread blocks, and other threads can stop the call."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tandem.bls.effects import DecodedText, EngineAnswer, EngineCall, EngineRole, TextCall
from tandem.bls.errors import EngineCallError, Failure
from tandem.bls.request import Request
from tandem.bls.triton.engine_calls.answer_reader import read_answer
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.pending_call import CallSlot, PendingCall
from tandem.bls.triton.engine_calls.request_builder import RequestBuilder
from tandem.bls.triton.tokenizer_calls import text_of, text_request

# TensorRT-LLM's error if its cache doesn't have the call's LoRA adapter.
NOT_CACHED = "Please send LoRA weights with request"
SECONDS_BETWEEN_STOPS = 1.0  # per call; an engine doesn't read a `stop` during a step


class SequenceCaller:
    """Makes blocking calls, one at a time. Another thread may stop or abandon the current one."""

    def __init__(self, clients: EngineClients, request: Request) -> None:
        self.interruption: Failure | None = None
        self._clients = clients
        self._request = request
        self._builders: dict[EngineRole, RequestBuilder] = {}
        # A `stop` must stop only this call. Client ids aren't used, because two clients may choose
        # the same id.
        self._name = f"tandem-{uuid.uuid4().hex}"
        self._calls_made = 0
        self._call_slot = CallSlot(clients.abandoned)
        self._next_stop = 0.0

    def answer(
        self, call: EngineCall, about_to_block: Callable[[], None] = lambda: None
    ) -> EngineAnswer:
        """Call an engine and return its answer.

        about_to_block: function to run right before the thread blocks.
        """
        engine = self._clients.engines[call.engine]
        if call.engine not in self._builders:
            self._builders[call.engine] = RequestBuilder(engine, self._request)
        builder = self._builders[call.engine]
        self._calls_made += 1
        request_id = f"{self._name}.{self._calls_made}"
        pending = partial(self._pending, engine.settings.model, request_id, engine.timeout_of(call))
        began = time.monotonic()
        request = builder.build(call, request_id)
        about_to_block()
        try:
            with pending():
                response = engine.infer(request)
        except EngineCallError as error:
            if NOT_CACHED not in error.what:
                raise
            request = builder.build(call, request_id, with_weights=True)
            with pending():
                response = engine.infer(request)
        return read_answer(response, call, time.monotonic() - began, engine.settings)

    def text(self, call: TextCall) -> DecodedText:
        """Detokenize ids."""
        settings = self._clients.settings
        model = settings.postprocessing_model
        request = text_request(model, call)
        with self._pending(model, "", settings.target.timeout):
            response = self._clients.calls.infer(model, request)
        return text_of(model, response)

    def interrupt(self, reason: Failure) -> None:
        """Stop the current call. The calling thread still waits for its end.

        New calls raise ``reason`` until ``interruption`` is reset to None.
        """
        self.interruption, self._next_stop = reason, 0.0
        self.stop_again(time.monotonic())

    def stop_again(self, now: float) -> None:
        """Repeat the `stop` of an interrupted call. The engine may have received it too early."""
        call = self._call_slot.call
        if call is not None and self.interruption is not None and now >= self._next_stop:
            self._next_stop = now + SECONDS_BETWEEN_STOPS
            self._clients.stop(call.model, call.request_id)

    def abandon_if_overdue(self, now: float) -> PendingCall | None:
        """Abandon and stop the current call if it is overdue. Return that call, or None."""
        call = self._call_slot.abandon_if_overdue(now)
        if call is not None:
            self._clients.stop(call.model, call.request_id)
        return call

    @contextmanager
    def _pending(self, model: str, request_id: str, timeout: float) -> Iterator[None]:
        """Register a call that other threads may stop or abandon while it blocks."""
        with self._call_slot.pending(model, request_id, timeout):
            if self.interruption is not None:
                raise self.interruption
            yield
