"""Carries out steps: does what they ask for, on a thread of their own."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

import numpy as np

from tandem.bls.effects import (
    Chunk,
    Effect,
    EngineAnswer,
    EngineCall,
    EngineRole,
    TextCall,
)
from tandem.bls.errors import Cancelled, EngineError, EngineTimeout, Failure, TandemError
from tandem.bls.request import Request
from tandem.bls.triton import request_ids
from tandem.bls.triton.background import in_background, log_exception
from tandem.bls.triton.clients import EngineClients
from tandem.bls.triton.engine import EngineRequests
from tandem.bls.triton.pending_call import Abandoned, CallSlot
from tandem.bls.triton.tokenizers import text_of, text_request

Steps: TypeAlias = Generator[Effect, Any, None]


class ChunkReceiver(Protocol):
    """Where what the steps make final goes."""

    def deliver(self, chunk: Chunk) -> None:
        """Take tokens and text that became final."""

    def ended(self, error: Failure | None) -> None:
        """Hear that nothing more will come; ``error`` says why where it was not the natural end."""


class ChunkQueue:
    """Chunks on their way from one carrier to another, joined where the reader falls behind."""

    def __init__(self) -> None:
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()

    def put(self, chunk: Chunk) -> None:
        """Add a chunk."""
        self._chunks.put(chunk)

    def interrupt(self) -> None:
        """Wake the reader, who will ask why."""
        self._chunks.put(None)

    def take(self) -> Chunk | None:
        """Wait for a chunk; return all that are there as one, or None after an interruption."""
        chunks = [self._chunks.get()]
        while not self._chunks.empty():
            chunks.append(self._chunks.get())
        known = [chunk for chunk in chunks if chunk is not None]
        if len(known) < len(chunks):
            return None
        return known[-1]._replace(tokens=np.concatenate([chunk.tokens for chunk in known]))


class Driver:
    """The steps of one sequence and the thread that carries them out.

    When a call is overdue its thread is given up and a new one carries on, with EngineTimeout for
    an answer. ``chunk_queue`` is what the steps listen to, if they do.
    """

    def __init__(
        self,
        clients: EngineClients,
        steps: Steps,
        request: Request,
        receiver: ChunkReceiver,
        chunk_queue: ChunkQueue | None = None,
    ) -> None:
        self._clients = clients
        self._request = request
        self._receiver = receiver
        self._steps = steps
        self._chunk_queue = chunk_queue
        self._requests: dict[EngineRole, EngineRequests] = {}
        self._name = request_ids.fresh()
        self._calls_made = 0
        self._wait = CallSlot(clients.abandoned)
        self._interruption: Failure | None = None

    def start(self) -> None:
        """Begin on a new thread."""
        in_background(lambda: self._drive(lambda: next(self._steps)))

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason`` at the next moment, and stop the call under way.

        An engine in the middle of a long step does not hear of it before the end of the step. The
        sequence keeps its place until then: the engine is at work for it, and is well.
        """
        if self._interruption is not None:
            return
        self._interruption = reason
        if self._chunk_queue is not None:
            self._chunk_queue.interrupt()
        call = self._wait.call
        if call is not None:
            self._clients.stop(call.model, call.request_id)

    def check(self, now: float) -> None:
        """Give up the call under way if it is overdue, and let another thread go on."""
        call = self._wait.abandon_if_overdue(now)
        if call is None:
            return
        self._clients.stop(call.model, call.request_id)
        reason = self._interruption or EngineTimeout(call.model, call.timeout)
        in_background(lambda: self._drive(lambda: self._steps.throw(reason)))

    def _drive(self, resume: Callable[[], Effect]) -> None:
        """Do what the decoding asks for until it ends; ``resume`` gets its first wish."""
        try:
            effect = resume()
            while True:
                effect = self._after(effect)
        except StopIteration:
            self._receiver.ended(None)
        except (TandemError, Cancelled) as error:
            self._receiver.ended(error)
        except Abandoned:
            return
        except Exception as error:  # noqa: BLE001  the client must hear of it, whatever it is
            log_exception("the decoding loop failed", error)
            self._receiver.ended(TandemError("internal error in the decoding loop; see the log"))

    def _after(self, effect: Effect) -> Effect:
        """Perform an effect; return what the decoding wants after its outcome."""
        failure: Failure | None = None
        answer = None
        try:
            answer = self._perform(effect)
        except EngineError as error:
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
        assert self._chunk_queue is not None
        return self._chunk_queue.take()

    def _engine_answer(self, call: EngineCall) -> EngineAnswer:
        engine = self._clients.engines[call.engine]
        requests = self._requests_to(call.engine)
        request_id = self._next_id()
        timeout = engine.timeout_of(call)
        began = time.monotonic()
        request = requests.build(call, request_id)
        response = self._await(
            engine.model, request_id, timeout, request, decoupled=engine.decoupled
        )
        return requests.read(call, response, time.monotonic() - began)

    def _text(self, call: TextCall) -> str:
        settings = self._clients.settings
        model = settings.postprocessing_model
        response = self._await(model, "", settings.target_timeout, text_request(model, call))
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
        """Make a call that may be stopped, or given up, while it blocks."""
        call = self._wait.begin(model, request_id, timeout)
        try:
            if self._interruption is not None:
                raise self._interruption
            return self._clients.calls.infer(model, request, decoupled=decoupled)
        finally:
            self._wait.end(call)
