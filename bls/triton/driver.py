"""Performs the effects that the decoding loop yields."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import Any, Protocol

from tandem.bls.effects import Chunk, Effect, EngineCall, StartAhead, Steps, StepsAhead, TextCall
from tandem.bls.errors import (
    Cancelled,
    EngineCallError,
    Failure,
    Overloaded,
    ServingError,
)
from tandem.bls.request import Request
from tandem.bls.triton.background import log_exception, run_in_background
from tandem.bls.triton.engine_calls.ahead_thread import AheadThread
from tandem.bls.triton.engine_calls.call_slot import Abandoned
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.sequence_caller import SequenceCaller
from tandem.bls.triton.tokenizer_calls import detokenize


class ChunkReceiver(Protocol):
    """Receives the chunks that the steps yield."""

    def deliver(self, chunk: Chunk) -> None:
        """Handle a chunk."""

    def on_end(self, error: Failure | None) -> None:
        """Handle the end of the steps. error: cause of the end, or None if they completed."""


class Driver:
    """Performs the effects of one sequence's steps on a separate thread.

    If a call is overdue, its thread is abandoned, and a new thread throws EngineTimeout into the
    steps. If the system has no more threads, the next ``check`` tries again.
    """

    def __init__(
        self,
        clients: EngineClients,
        steps: Steps,
        request: Request,
        receiver: ChunkReceiver,
    ) -> None:
        self._clients = clients
        self._request = request
        self._receiver = receiver
        self._steps = steps
        self._caller = SequenceCaller(clients, request)
        self._retry: Callable[[], None] | None = None  # waits for a free thread
        self._ahead_thread: AheadThread | None = None
        self._steps_ahead: StepsAhead | None = None  # start with the next call
        self._ahead: futures.Future[Any] | None = None  # of steps that began with the last call

    def start(self) -> None:
        """Begin the steps on a new thread."""
        self._resume(None)

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason``, and stop the current call.

        The engine stops at the end of its current step. Until then the sequence keeps its
        reservation, because the engine is still working on it.
        """
        self._caller.interrupt(reason)
        thread = self._ahead_thread  # read once, because the sequence's thread may change it
        if thread is not None:
            thread.stop()

    def check(self, now: float) -> None:
        """Abandon the current call if it is overdue, and continue on another thread."""
        if self._retry is not None:
            self._retry()
        thread = self._ahead_thread
        if thread is not None:
            thread.check(now)
        overdue = self._caller.check(now)
        if overdue is not None:
            self._resume(overdue)

    def _resume(self, failure: EngineCallError | None) -> None:
        """Continue the steps on a new thread. If no thread is free, a later ``check`` retries.

        An interrupted sequence ends on the calling thread instead. It may never be checked again,
        because a request that was interrupted before its start is already closed.
        """

        def retry_or_end(_: Overloaded) -> None:
            if self._caller.interruption is None:
                self._retry = partial(self._resume, failure)
            else:
                self._end(self._caller.interruption)

        self._retry = None
        run_in_background(partial(self._drive, failure), retry_or_end)

    def _drive(self, failure: EngineCallError | None) -> None:
        """Perform effects until the steps end. failure: error to throw into the steps first."""
        result: Any = None
        try:
            while self._caller.interruption is None:
                effect = self._steps.send(result) if failure is None else self._steps.throw(failure)
                failure = None
                try:
                    result = self._perform(effect)
                except EngineCallError as error:
                    failure = error
        except StopIteration:
            self._end(None)
        except (ServingError, Cancelled) as error:
            self._end(error)
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001  a panic in a Rust library isn't an Exception
            log_exception("the decoding loop failed", error)
            self._end(ServingError("internal error in the decoding loop; see the server's log"))
        else:  # the steps must not see an interruption as an engine's failure
            self._end(self._caller.interruption)

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, EngineCall):
            return self._caller.call_engine(effect, before_blocking=self._launch_ahead)
        if isinstance(effect, Chunk):
            return self._receiver.deliver(effect)
        if isinstance(effect, TextCall):
            return detokenize(effect, self._clients.settings, self._caller)
        if isinstance(effect, StartAhead):
            return self._schedule_ahead(effect.steps)
        return self._await_ahead(effect.timeout)

    def _schedule_ahead(self, steps: StepsAhead) -> None:
        """Run ``steps`` during the next call. Stops earlier steps that weren't awaited."""
        if self._ahead is not None and self._ahead_thread is not None:
            self._ahead_thread.stop()
        self._ahead, self._steps_ahead = None, steps

    def _launch_ahead(self) -> None:
        """Begin the draft-ahead steps.

        Called right before this thread blocks, so that they don't delay its own engine call.
        """
        steps, self._steps_ahead = self._steps_ahead, None
        if steps is None:
            return
        if self._ahead_thread is None or self._ahead_thread.lost:
            self._ahead_thread = AheadThread.start_if_free(self._clients, self._request)
        if self._ahead_thread is not None:
            self._ahead = self._ahead_thread.begin(steps)

    def _await_ahead(self, timeout: float) -> Any:
        """Return the draft-ahead steps' result, or None if it takes longer than ``timeout``."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or self._ahead_thread is None:
            return None
        try:
            return ahead.result(timeout)
        except futures.TimeoutError:
            self._ahead_thread.stop()
            return None

    def _end(self, error: Failure | None) -> None:
        """Report the end after the last engine has stopped working on the sequence."""
        if self._ahead_thread is None:
            self._receiver.on_end(error)
        else:
            self._ahead_thread.close(lambda: self._receiver.on_end(error))
