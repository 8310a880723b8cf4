"""Performs the effects that the decoding loop yields."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

from tandem.bls.drafters.drafter import StepsAhead
from tandem.bls.effects import (
    AwaitAhead,
    Chunk,
    Effect,
    EngineCall,
    StartAhead,
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
from tandem.bls.triton.background import in_background, log_exception
from tandem.bls.triton.engine_calls.ahead_thread import AheadThread, Task
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.engine_caller import EngineCaller
from tandem.bls.triton.engine_calls.pending_call import Abandoned

Steps: TypeAlias = Generator[Effect, Any, None]


class ChunkReceiver(Protocol):
    """Receives the chunks that the steps yield."""

    def deliver(self, chunk: Chunk) -> None:
        """Handle a chunk."""

    def ended(self, error: Failure | None) -> None:
        """Handle the end of the steps. error: cause of the end, or None if they completed."""


class Driver:
    """Performs the effects of one sequence's steps on a separate thread.

    If a call is overdue, its thread is abandoned, and a new thread throws EngineTimeout into the
    steps. If the system has no more threads, the next ``check`` tries again.

    next_chunk: function that performs ``NextChunk``, for steps that yield this effect.
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
        self._caller = EngineCaller(clients, request)
        self._resume: Callable[[], Effect] | None = None  # waits for a free thread
        self._ahead_thread: AheadThread | None = None
        self._steps_ahead: StepsAhead | None = None  # start with the next call
        self._task: Task | None = None  # the steps that started with the last call

    def start(self) -> None:
        """Begin the steps on a new thread."""
        self._go_on(lambda: next(self._steps))

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason``, and stop the current call.

        The engine stops at the end of its current step. Until then the sequence keeps its
        reservation, because the engine still works for it.
        """
        self._caller.interrupt(reason)
        thread = self._ahead_thread  # read once, because the sequence's thread may change it
        if thread is not None:
            thread.stop()

    def check(self, now: float) -> None:
        """Abandon the current call if it is overdue, and continue on another thread."""
        if self._resume is not None:
            self._go_on(self._resume)
        thread = self._ahead_thread
        if thread is not None:
            thread.check(now)
        self._caller.stop_again(now)
        call = self._caller.abandon_if_overdue(now)
        if call is not None:
            error = EngineTimeout(call.model, call.timeout)
            self._go_on(lambda: self._after_failure(error))

    def _go_on(self, resume: Callable[[], Effect]) -> None:
        """Continue the steps on a new thread. If no thread is free, a later ``check`` retries."""

        def remember(_: Overloaded) -> None:
            self._resume = resume

        self._resume = None
        in_background(lambda: self._drive(resume), remember)

    def _drive(self, resume: Callable[[], Effect]) -> None:
        """Perform effects until the steps end. resume: function that returns the first effect."""
        try:
            effect = resume()
            while True:
                effect = self._after(effect)
        except StopIteration:
            self._end(None)
        except (ServingError, Cancelled) as error:
            self._end(error)
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001  a panic in a Rust library isn't an Exception
            log_exception("the decoding loop failed", error)
            self._end(ServingError("internal error in the decoding loop; see the server's log"))

    def _after(self, effect: Effect) -> Effect:
        """Perform an effect, send its result to the steps, and return the next effect."""
        try:
            answer = self._perform(effect)
        except EngineCallError as error:
            return self._after_failure(error)
        self._raise_interruption()
        return self._steps.send(answer)

    def _after_failure(self, error: EngineCallError) -> Effect:
        """Throw an engine's error into the steps, and return the next effect."""
        self._raise_interruption()
        return self._steps.throw(error)

    def _raise_interruption(self) -> None:
        """Raise the reason of an interruption. The steps must not see it as an engine's failure."""
        if self._caller.interruption is not None:
            raise self._caller.interruption

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, EngineCall):
            return self._caller.answer(effect, about_to_block=self._begin_ahead)
        if isinstance(effect, Chunk):
            return self._receiver.deliver(effect)
        if isinstance(effect, TextCall):
            return self._caller.text(effect)
        if isinstance(effect, StartAhead):
            return self._start_ahead(effect.steps)
        if isinstance(effect, AwaitAhead):
            return self._await_ahead(effect.timeout)
        assert self._next_chunk is not None
        return self._next_chunk()

    def _start_ahead(self, steps: StepsAhead) -> None:
        """Run ``steps`` during the next call. Stops earlier steps that weren't awaited."""
        if self._task is not None and self._ahead_thread is not None:
            self._ahead_thread.stop()
        self._task, self._steps_ahead = None, steps

    def _begin_ahead(self) -> None:
        """Begin the draft-ahead steps.

        Called right before this thread blocks, so that they don't delay its own engine call.
        """
        steps, self._steps_ahead = self._steps_ahead, None
        if steps is None:
            return
        if self._ahead_thread is None or self._ahead_thread.lost:
            self._ahead_thread = AheadThread.if_free(self._clients, self._request)
        if self._ahead_thread is not None:
            self._task = self._ahead_thread.begin(steps)

    def _await_ahead(self, timeout: float) -> Any:
        """Return the draft-ahead steps' result, or None if it takes longer than ``timeout``."""
        task, self._task = self._task, None
        if task is None or self._ahead_thread is None:
            return None
        if task.done_within(timeout):
            return task.result
        self._ahead_thread.stop()
        return None

    def _end(self, error: Failure | None) -> None:
        """Report the end after the last engine has stopped working for the sequence."""
        if self._ahead_thread is None:
            self._receiver.ended(error)
        else:
            self._ahead_thread.close(lambda: self._receiver.ended(error))
