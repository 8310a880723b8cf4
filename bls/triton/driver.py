"""Performs the effects that steps ask for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

from tandem.bls.effects import (
    AwaitAhead,
    Chunk,
    Effect,
    EngineAnswer,
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
from tandem.bls.triton.engine_calls.ahead_thread import Helper, StepsBeside, Task
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.engine_caller import EngineCaller
from tandem.bls.triton.engine_calls.pending_call import Abandoned

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
        self._caller = EngineCaller(clients, request)
        self._resume: Callable[[], Effect] | None = None  # what waits for a thread
        self._helper: Helper | None = None
        self._steps_beside: StepsBeside | None = None  # that wait for the next call
        self._task: Task | None = None  # those beside the last one

    def start(self) -> None:
        """Begin on a new thread."""
        self._go_on(lambda: next(self._steps))

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason`` at the next moment, and stop the call under way.

        An engine in the middle of a long step notices at the end of that step. The sequence keeps
        its reservation until then: the engine still works for it.
        """
        self._caller.interrupt(reason)
        helper = self._helper  # read once: the sequence's own thread may change it
        if helper is not None:
            helper.stop()

    def check(self, now: float) -> None:
        """Abandon the call under way if it is overdue, and let another thread go on."""
        if self._resume is not None:
            self._go_on(self._resume)
        helper = self._helper
        if helper is not None:
            helper.check(now)
        self._caller.stop_again(now)
        call = self._caller.abandon_if_overdue(now)
        if call is not None:
            error = EngineTimeout(call.model, call.timeout)
            self._go_on(lambda: self._after_failure(error))

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
            self._end(None)
        except (ServingError, Cancelled) as error:
            self._end(error)
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001  a panic of a library in Rust is no Exception
            log_exception("the decoding loop failed", error)
            self._end(ServingError("internal error in the decoding loop; see the log"))

    def _after(self, effect: Effect) -> Effect:
        """Perform an effect, pass its outcome to the steps and return the next effect."""
        try:
            answer = self._perform(effect)
        except EngineCallError as error:
            return self._after_failure(error)
        self._raise_interruption()
        return self._steps.send(answer)

    def _after_failure(self, error: EngineCallError) -> Effect:
        """Let the steps decide what an engine's failure means, and return the next effect."""
        self._raise_interruption()
        return self._steps.throw(error)

    def _raise_interruption(self) -> None:
        """End here once interrupted: to the steps, another prompt's error would be their own."""
        if self._caller.interruption is not None:
            raise self._caller.interruption

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, EngineCall):
            return self._engine_answer(effect)
        if isinstance(effect, Chunk):
            return self._receiver.deliver(effect)
        if isinstance(effect, TextCall):
            return self._caller.text(effect)
        if isinstance(effect, StartAhead):
            return self._beside(effect.steps)
        if isinstance(effect, AwaitAhead):
            return self._settle(effect.timeout)
        assert self._next_chunk is not None
        return self._next_chunk()

    def _engine_answer(self, call: EngineCall) -> EngineAnswer:
        return self._caller.answer(call, about_to_block=self._begin_beside)

    def _beside(self, steps: StepsBeside) -> None:
        """Have steps carried out beside the next call; what was not settled is given up."""
        if self._task is not None and self._helper is not None:
            self._helper.stop()
        self._task, self._steps_beside = None, steps

    def _begin_beside(self) -> None:
        """Let the helper begin as this thread is about to block: the answer then wakes this one."""
        steps, self._steps_beside = self._steps_beside, None
        if steps is None:
            return
        if self._helper is None or self._helper.lost:
            self._helper = Helper.if_free(self._clients, self._request)
        if self._helper is not None:
            self._task = self._helper.begin(steps)

    def _settle(self, timeout: float) -> Any:
        """Return what was carried out beside the last call; None where it takes longer."""
        task, self._task = self._task, None
        if task is None or self._helper is None:
            return None
        if task.done_within(timeout):
            return task.result
        self._helper.stop()
        return None

    def _end(self, error: Failure | None) -> None:
        """Tell the end, once no engine works for the sequence any more."""
        if self._helper is None:
            self._receiver.ended(error)
        else:
            self._helper.close(lambda: self._receiver.ended(error))
