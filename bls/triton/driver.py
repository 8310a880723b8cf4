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
    """Takes the chunks that the steps make final."""

    def deliver(self, chunk: Chunk) -> None:
        """Receive tokens and text that became final."""

    def ended(self, error: Failure | None) -> None:
        """Handle the end of the chunks. error: the cause, unless the answer is complete."""


class Driver:
    """Performs the effects of one sequence's steps, on a thread of its own.

    If a call is overdue, its thread is abandoned, and a new thread continues the steps with
    EngineTimeout. If the system has no thread left, the next check tries again.

    next_chunk: performs the effect ``NextChunk``, for steps that yield it.
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
        self._resume: Callable[[], Effect] | None = None  # until there is a thread for it
        self._ahead_thread: AheadThread | None = None
        self._steps_ahead: StepsAhead | None = None  # until the next call
        self._task: Task | None = None  # the steps ahead of the last call

    def start(self) -> None:
        """Begin on a new thread."""
        self._go_on(lambda: next(self._steps))

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason``, and stop the current call.

        An engine notices at the end of its step. The sequence keeps its reservation until then,
        because the engine still works for it.
        """
        self._caller.interrupt(reason)
        thread = self._ahead_thread  # read once: the sequence's own thread may change it
        if thread is not None:
            thread.stop()

    def check(self, now: float) -> None:
        """Abandon the current call if it is overdue, and let another thread continue."""
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
        """Continue the steps on a new thread. If no thread is available, a later check retries."""

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
            self._end(None)
        except (ServingError, Cancelled) as error:
            self._end(error)
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001  a panic of a Rust library is no Exception
            log_exception("the decoding loop failed", error)
            self._end(ServingError("internal error in the decoding loop; see the server's log"))

    def _after(self, effect: Effect) -> Effect:
        """Perform an effect, pass its outcome to the steps and return the next effect."""
        try:
            answer = self._perform(effect)
        except EngineCallError as error:
            return self._after_failure(error)
        self._raise_interruption()
        return self._steps.send(answer)

    def _after_failure(self, error: EngineCallError) -> Effect:
        """Let the steps handle an engine's failure, and return the next effect."""
        self._raise_interruption()
        return self._steps.throw(error)

    def _raise_interruption(self) -> None:
        """End once interrupted: the steps would take another prompt's error for their own."""
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
        """Carry out steps during the next call. Earlier steps that were not awaited are stopped."""
        if self._task is not None and self._ahead_thread is not None:
            self._ahead_thread.stop()
        self._task, self._steps_ahead = None, steps

    def _begin_ahead(self) -> None:
        """Begin the steps ahead right before this thread blocks: they must not delay its call."""
        steps, self._steps_ahead = self._steps_ahead, None
        if steps is None:
            return
        if self._ahead_thread is None or self._ahead_thread.lost:
            self._ahead_thread = AheadThread.if_free(self._clients, self._request)
        if self._ahead_thread is not None:
            self._task = self._ahead_thread.begin(steps)

    def _await_ahead(self, timeout: float) -> Any:
        """Return the result of the steps ahead; None if they take longer."""
        task, self._task = self._task, None
        if task is None or self._ahead_thread is None:
            return None
        if task.done_within(timeout):
            return task.result
        self._ahead_thread.stop()
        return None

    def _end(self, error: Failure | None) -> None:
        """Report the end, once no engine works for the sequence."""
        if self._ahead_thread is None:
            self._receiver.ended(error)
        else:
            self._ahead_thread.close(lambda: self._receiver.ended(error))
