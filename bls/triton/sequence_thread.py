"""The thread that decodes one prompt, and the outside world of its loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from tandem.bls.errors import (
    Abandoned,
    Cancelled,
    EngineCallError,
    Failure,
    Interrupted,
    Overloaded,
    ServingError,
)
from tandem.bls.ports import (
    Chunk,
    DecodedText,
    EngineCall,
    EngineResult,
    EngineRole,
    LoopPorts,
)
from tandem.bls.request import Request, TokenIds
from tandem.bls.text import Decode
from tandem.bls.triton.background import log_exception, run_in_background
from tandem.bls.triton.engine_calls.ahead_thread import AheadThread
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.engine_calls.sequence_caller import SequenceCaller
from tandem.bls.triton.tokenizer_calls import detokenize


class Loop(Protocol):
    """A decoding loop: `Decoding`."""

    request: Request

    def run(self, ports: LoopPorts) -> None:
        """Decode until the answer is complete."""

    def draft_failed(self, error: EngineCallError) -> None:
        """Go on without a draft. Called before `run` after a draft call has timed out."""


class ChunkReceiver(Protocol):
    """Receives the chunks of a loop."""

    def deliver(self, chunk: Chunk) -> None:
        """Handle a chunk."""

    def on_end(self, error: Failure | None) -> None:
        """Handle the end of the loop. error: cause of the end, or None if it is complete."""


class SequenceThread:
    """Runs the loop of one sequence on its own thread, and is its `LoopPorts`.

    A call that is overdue never returns, or too late, so its thread is abandoned. If the target is
    overdue, the sequence ends. If the draft engine is, the loop goes on with another round on a new
    thread. If the system has no more threads, the next ``check`` tries again.

    decode: see `LoopPorts.decode`; by default, the model `postprocessing` is called.
    """

    def __init__(
        self,
        clients: EngineClients,
        loop: Loop,
        receiver: ChunkReceiver,
        decode: Decode | None = None,
    ) -> None:
        self._clients = clients
        self._loop = loop
        self._receiver = receiver
        self._decode = decode
        self._caller = SequenceCaller(clients, loop.request)
        self._called: EngineRole | None = None  # the engine of the last call
        self._retry: Callable[[], None] | None = None  # waits for a free thread
        self._ahead: AheadThread | None = None

    def start(self) -> None:
        """Begin to decode on a new thread."""
        self._resume(None)

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason``, and stop the current call.

        The engine stops at the end of its current step. Until then the sequence keeps its
        reservation, because the engine is still working on it.
        """
        self._caller.interrupt(reason)
        self.stop_ahead()

    def check(self, now: float) -> None:
        """Abandon the current call if it is overdue."""
        if self._retry is not None:
            self._retry()
        ahead = self._ahead  # read once, because the sequence's thread may change it
        if ahead is not None:
            ahead.check(now)
        overdue = self._caller.check(now)
        if overdue is None:
            return
        if self._called == "draft" and self._caller.interruption is None:
            self._resume(overdue)
        else:
            self._end(overdue)

    def call(self, call: EngineCall) -> EngineResult:
        self._called = call.engine
        try:
            result = self._caller.call_engine(call)
        except (ServingError, Cancelled):  # an interruption isn't an engine's failure
            if self._caller.interruption is not None:
                raise Interrupted from None
            raise
        if self._caller.interruption is not None:
            raise Interrupted
        return result

    def call_ahead(self, call: EngineCall) -> Future[EngineResult] | None:
        if self._ahead is None or self._ahead.lost:
            self._ahead = AheadThread.start_if_free(self._clients, self._loop.request)
        return None if self._ahead is None else self._ahead.begin(call)

    def stop_ahead(self) -> None:
        ahead = self._ahead
        if ahead is not None:
            ahead.stop()

    def decode(
        self, window: TokenIds, context_length: int | None, *, wants_lengths: bool = False
    ) -> DecodedText:
        if self._decode is not None:
            return self._decode(window, context_length, wants_lengths=wants_lengths)
        self._called = None
        settings = self._clients.settings
        return detokenize(
            window, context_length, settings, self._caller, wants_lengths=wants_lengths
        )

    def send(self, chunk: Chunk) -> None:
        self._receiver.deliver(chunk)

    def _resume(self, failure: EngineCallError | None) -> None:
        """Decode on a new thread. If no thread is free, a later ``check`` retries.

        An interrupted sequence ends on the calling thread instead. It may never be checked again,
        because a request that was interrupted before its start is already closed.

        failure: of the draft call that the last thread was abandoned in.
        """

        def retry_or_end(_: Overloaded) -> None:
            if self._caller.interruption is None:
                self._retry = partial(self._resume, failure)
            else:
                self._end(None)

        self._retry = None
        run_in_background(partial(self._run, failure), retry_or_end)

    def _run(self, failure: EngineCallError | None) -> None:
        error: Failure | None = None
        try:
            if failure is not None:
                self._loop.draft_failed(failure)
            if self._caller.interruption is None:
                self._loop.run(self)
        except Abandoned:
            return
        except Interrupted:
            pass
        except (ServingError, Cancelled) as failed:
            error = failed
        except BaseException as failed:  # noqa: BLE001  a panic in a Rust library isn't an Exception
            log_exception("the decoding loop failed", failed)
            error = ServingError("internal error in the decoding loop; see the server's log")
        self._end(error)

    def _end(self, error: Failure | None) -> None:
        """Report the end after the last engine has stopped working on the sequence."""
        error = self._caller.interruption or error
        if self._ahead is None:
            self._receiver.on_end(error)
        else:
            self._ahead.close(lambda: self._receiver.on_end(error))
