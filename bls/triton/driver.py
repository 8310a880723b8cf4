"""Performs the effects that steps ask for."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

from tandem.bls.effects import (
    Chunk,
    DecodedText,
    Effect,
    EngineAnswer,
    EngineCall,
    EngineRole,
    TextCall,
)
from tandem.bls.errors import (
    Cancelled,
    EngineCallError,
    EngineTimeout,
    Failure,
    Overloaded,
    ServingError,
)
from tandem.bls.request import Request
from tandem.bls.triton import request_ids
from tandem.bls.triton.background import in_background, log_exception
from tandem.bls.triton.clients import EngineClients
from tandem.bls.triton.engine_client import EngineRequests
from tandem.bls.triton.pending_call import Abandoned, CallSlot
from tandem.bls.triton.tokenizers import text_of, text_request

Steps: TypeAlias = Generator[Effect, Any, None]


class ChunkReceiver(Protocol):
    """Takes the chunks that the steps make final."""

    def deliver(self, chunk: Chunk) -> None:
        """Take tokens and text that became final."""

    def ended(self, error: Failure | None) -> None:
        """Note that no more chunks will come; ``error`` says why unless the end was natural."""


class Driver:
    """Performs the effects of one sequence's steps, on a thread of its own.

    When a call is overdue, its thread is abandoned; a new one goes on, with EngineTimeout for an
    answer. Where the system has no thread left, the next check asks for it again.
    next_chunk: performs the effect ``NextChunk``, for steps that ask for it.
    """

    def __init__(
        self,
        clients: EngineClients,
        steps: Steps,
        request: Request,
        receiver: ChunkReceiver,
        next_chunk: Callable[[], Chunk | None] | None = None,
    ) -> None:
        self._clients = clients
        self._request = request
        self._receiver = receiver
        self._steps = steps
        self._next_chunk = next_chunk
        self._requests: dict[EngineRole, EngineRequests] = {}
        self._name = request_ids.fresh()
        self._calls_made = 0
        self._wait = CallSlot(clients.abandoned)
        self._interruption: Failure | None = None
        self._resume: Callable[[], Effect] | None = None  # what waits for a thread

    def start(self) -> None:
        """Begin on a new thread."""
        self._go_on(lambda: next(self._steps))

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason`` at the next moment, and stop the call under way.

        An engine in the middle of a long step notices at the end of that step. The sequence keeps
        its reservation until then: the engine still works for it.
        """
        if self._interruption is not None:
            return
        self._interruption = reason
        call = self._wait.call
        if call is not None:
            self._clients.stop(call.model, call.request_id)

    def check(self, now: float) -> None:
        """Abandon the call under way if it is overdue, and let another thread go on."""
        if self._resume is not None:
            self._go_on(self._resume)
        call = self._wait.abandon_if_overdue(now)
        if call is None:
            return
        self._clients.stop(call.model, call.request_id)
        reason = self._interruption or EngineTimeout(call.model, call.timeout)
        self._go_on(lambda: self._steps.throw(reason))

    def _go_on(self, resume: Callable[[], Effect]) -> None:
        """Drive the steps on a new thread; where there is none to be had, at a later check."""

        def remember(_: Overloaded) -> None:
            self._resume = resume

        self._resume = None
        in_background(lambda: self._drive(resume), remember)

    def _drive(self, resume: Callable[[], Effect]) -> None:
        """Perform effects until the steps end; ``resume`` returns the first one."""
        try:
            effect = resume()
            while True:
                effect = self._after(effect)
        except StopIteration:
            self._receiver.ended(None)
        except (ServingError, Cancelled) as error:
            self._receiver.ended(error)
        except Abandoned:
            return
        except Exception as error:  # noqa: BLE001  the client must get an error, whatever it is
            log_exception("the decoding loop failed", error)
            self._receiver.ended(ServingError("internal error in the decoding loop; see the log"))

    def _after(self, effect: Effect) -> Effect:
        """Perform an effect, pass its outcome to the steps and return the next effect."""
        failure: Failure | None = None
        answer = None
        try:
            answer = self._perform(effect)
        except EngineCallError as error:
            failure = error
        reason = self._interruption or failure
        if reason is not None:
            return self._steps.throw(reason)
        return self._steps.send(answer)

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, EngineCall):
            return self._engine_answer(effect)
        if isinstance(effect, Chunk):
            return self._receiver.deliver(effect)
        if isinstance(effect, TextCall):
            return self._text(effect)
        assert self._next_chunk is not None
        return self._next_chunk()

    def _engine_answer(self, call: EngineCall) -> EngineAnswer:
        engine = self._clients.engines[call.engine]
        requests = self._requests_to(call.engine)
        request_id = self._next_id()
        timeout = engine.timeout_of(call)
        began = time.monotonic()
        request = requests.build(call, request_id)
        model, decoupled = engine.settings.model, engine.settings.decoupled
        response = self._await(model, request_id, timeout, request, decoupled=decoupled)
        return requests.read(call, response, time.monotonic() - began)

    def _text(self, call: TextCall) -> DecodedText:
        settings = self._clients.settings
        model = settings.postprocessing_model
        response = self._await(model, "", settings.target.timeout, text_request(model, call))
        return text_of(model, response)

    def _requests_to(self, role: EngineRole) -> EngineRequests:
        if role not in self._requests:
            self._requests[role] = EngineRequests(self._clients.engines[role], self._request)
        return self._requests[role]

    def _next_id(self) -> str:
        self._calls_made += 1
        return f"{self._name}.{self._calls_made}"

    def _await(
        self, model: str, request_id: str, timeout: float, request: Any, *, decoupled: bool = False
    ) -> Any:
        """Make a call that may be stopped or abandoned while it blocks."""
        call = self._wait.begin(model, request_id, timeout)
        try:
            if self._interruption is not None:
                raise self._interruption
            return self._clients.calls.infer(model, request, decoupled=decoupled)
        finally:
            self._wait.end(call)
