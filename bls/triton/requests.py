"""The state of client requests and their sequences, and the threads that decode and send them.

A `RequestState` has one `SequenceState` per prompt. The prompts decode in parallel, each in a
`SequenceThread`, which is also the outside world of its loop.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import numpy as np

from tandem.bls.admission import Admission, Arrivals, Permit, Reservation, blocks_for
from tandem.bls.errors import (
    Abandoned,
    Cancelled,
    DeadlineExceeded,
    EngineCallError,
    Failure,
    Interrupted,
    Overloaded,
    ServingError,
)
from tandem.bls.loop import Decoding
from tandem.bls.ports import (
    Chunk,
    DecodedText,
    EngineCall,
    EngineResult,
    EngineRole,
    join_details,
)
from tandem.bls.request import Options, TokenIds
from tandem.bls.statistics import Timeline
from tandem.bls.text import Decode
from tandem.bls.triton.background import log_exception, run_in_background
from tandem.bls.triton.calls import CallSlot
from tandem.bls.triton.client import Sender
from tandem.bls.triton.engine_calls import AheadThread, EngineClients, SequenceCaller
from tandem.bls.triton.metrics import Metrics
from tandem.bls.triton.responses import ResponseBuilder, SequenceOutput
from tandem.bls.triton.tokenizer_calls import detokenize


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
        loop: Decoding,
        receiver: SequenceState,
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

    def start(self, failure: EngineCallError | None = None) -> None:
        """Decode on a new thread. If no thread is free, a later ``check`` retries.

        An interrupted sequence ends on the calling thread instead. It may never be checked again,
        because a request that was interrupted before its start is already closed.

        failure: of the draft call that the last thread was abandoned in, if there was one.
        """

        def retry_or_end(_: Overloaded) -> None:
            if self._caller.interruption is None:
                self._retry = partial(self.start, failure)
            else:
                self._end(None)

        self._retry = None
        run_in_background(partial(self._run, failure), retry_or_end)

    def interrupt(self, reason: Failure) -> None:
        """End the decoding with ``reason``, and stop the current call.

        The engine stops at the end of its current step. Until then the sequence keeps its
        reservation, because the engine is still working on it.
        """
        self._caller.interrupt(reason)
        self.stop_ahead()

    @property
    def is_interrupted(self) -> bool:
        return self._caller.interruption is not None

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
            self.start(overdue)
        else:
            self._end(overdue)

    def reserve(self, num_output_tokens: int) -> bool:
        return self._receiver.reserve(num_output_tokens)

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

    def _run(self, failure: EngineCallError | None) -> None:
        error: Failure | None = None
        try:
            if failure is not None:
                self._loop.draft_failed(failure)
            if self._caller.interruption is None and self._loop.run(self):
                self.stop_ahead()
                return  # its reservation starts it again
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


Outbox: TypeAlias = "queue.SimpleQueue[Chunk | None]"  # None: the sequence has ended


class SequenceState:
    """State of one prompt, from the queue to its last token. Its reservation starts it."""

    def __init__(
        self,
        index: int,
        decoding: Decoding,
        prefix: str,
        request: RequestState,
        *,
        metrics: Metrics,
        admission: Admission,
        reservation: Reservation,
        clients: EngineClients,
        decode: Decode | None,
    ) -> None:
        self._index = index
        self._decoding = decoding
        self._unsent_text = [prefix]
        self._unsent: list[Chunk] = []
        self._cum_log_prob = 0.0
        self._is_first = True  # whether no output has been sent yet
        self._request = request
        self._metrics = metrics
        self._thread = SequenceThread(clients, decoding, self, decode)
        self._admission = admission
        self._timeline = Timeline(request.arrival_ns)
        self._outbox: Outbox | None = None  # of the thread that sends a stream
        self._settings = clients.settings
        self.is_running = False  # whether this sequence has started but not ended
        self.reservation = reservation
        reservation.start = self._start

    def check(self, now: float) -> None:
        """Abandon overdue calls."""
        self._thread.check(now)

    def interrupt(self, reason: Failure) -> None:
        """Stop decoding, and leave the queue. If the sequence starts later, it ends immediately."""
        self._thread.interrupt(reason)
        if self._admission.remove_waiting(self.reservation) and self.is_running:
            self._thread.start()

    def reserve(self, num_output_tokens: int) -> bool:
        """Reserve KV blocks for the next round. If they aren't free, queue for them."""
        blocks = blocks_for(self._decoding.request, self._settings, num_output_tokens)
        if self._admission.extend(self.reservation, *blocks):
            return True
        # An interruption that came before it queued didn't find it there.
        if self._thread.is_interrupted and self._admission.remove_waiting(self.reservation):
            raise Interrupted
        return False

    def deliver(self, chunk: Chunk) -> None:
        """Append a chunk to the output.

        Another thread sends the chunks of a stream, so rounds don't wait. If the system has no
        thread for that, this thread sends the chunk.
        """
        self._timeline.record_delivery(len(chunk.tokens))
        if self._decoding.request.stream and self._outbox is None:
            self._outbox = self._start_sending()
        if self._outbox is None:
            self._emit([chunk])
        else:
            self._outbox.put(chunk)

    def _start_sending(self) -> Outbox | None:
        """Return the queue of a new thread that sends chunks, or None if no thread is free."""
        outbox: Outbox = queue.SimpleQueue()
        try:
            run_in_background(partial(self._send_stream, outbox))
        except Overloaded:
            return None
        return outbox

    def _send_stream(self, outbox: Outbox) -> None:
        """Send the chunks of a stream. Chunks that have queued up are sent as one."""
        ended = False
        try:
            while not ended:
                chunks = [outbox.get()]
                while not outbox.empty():
                    chunks.append(outbox.get())
                ended = chunks[-1] is None
                self._emit([chunk for chunk in chunks if chunk is not None])
        except ServingError as error:
            self._request.fail(error)
        except BaseException as error:  # noqa: BLE001  the client must get an answer
            log_exception("failed to send a chunk", error)
            line = "internal error while sending the answer; see the server's log"
            self._request.fail(ServingError(line))

    def _emit(self, chunks: list[Chunk]) -> None:
        """Append chunks to the output, and send the output if it is ready.

        In a stream, output with text is ready; otherwise only the complete answer is.
        """
        for chunk in chunks:
            self._unsent_text.append(chunk.text)
            self._unsent.append(chunk)
            if chunk.details.log_probs is not None:
                self._cum_log_prob += float(chunk.details.log_probs.sum())
        streams_now = self._decoding.request.stream and any(self._unsent_text)
        if not chunks or (chunks[-1].finish_reason is None and not streams_now):
            return
        chunk = chunks[-1]
        output = SequenceOutput(
            self._index,
            "".join(self._unsent_text),
            np.concatenate([unsent.tokens for unsent in self._unsent]),
            chunk.finish_reason,
            chunk.totals,
            join_details([unsent.details for unsent in self._unsent]),
            self._decoding,
            self._timeline,
            cum_log_prob=self._cum_log_prob,
            prompt_log_probs=self._decoding.prompt_log_probs if self._is_first else None,
        )
        self._unsent_text, self._unsent, self._is_first = [], [], False
        self._request.add_output(output)

    def on_end(self, error: Failure | None) -> None:
        """Count the sequence and release its reservation. An error ends the whole request.

        error: cause of the end, or None if the answer is complete.
        """
        decoding = self._decoding
        self._metrics.count(decoding.request.drafter, decoding.statistics, self._timeline)
        self.is_running = False  # after the metrics, because the watcher may now drop the request
        self._admission.release(self.reservation)
        if self._outbox is not None:
            self._outbox.put(None)
        if error is not None:
            self._request.fail(error)

    def _start(self) -> None:
        if not self.is_running:
            self._timeline.mark_scheduled()
        self.is_running = True
        self._thread.start()


class RequestState:
    """State of a request, from its arrival to its last response. Thread-safe."""

    def __init__(
        self,
        sender: Sender,
        response_builder: ResponseBuilder,
        options: Options,
        *,
        deadline: float,
        timeout: float,
        call_slot: CallSlot,
        arrivals: Arrivals,
    ) -> None:
        self.options = options
        self.call_slot = call_slot  # holds the call to the tokenizer before the sequences exist
        self.arrivals = arrivals
        self.permit: Permit | None = None  # permit to call the tokenizer
        self.arrival_ns = time.time_ns()
        self._sender = sender
        self._response_builder = response_builder
        self._deadline = deadline
        self._timeout = timeout
        self._sequences: Sequence[SequenceState] = ()
        self._unfinished = 0
        self._unsent: list[SequenceOutput] = []
        self._failure: Failure | None = None
        self._lock = threading.Lock()  # never block while holding it, because the watcher needs it
        self._sending = threading.Lock()  # keeps outputs in order

    @property
    def closed(self) -> bool:
        """Whether the last response has been sent and no model is still working on the request."""
        busy = self.call_slot.call is not None or any(
            sequence.is_running for sequence in self._sequences
        )
        return self._sender.closed and not busy

    def open(self, sequences: Sequence[SequenceState]) -> None:
        """Add the sequences, which may start at any time from now on.

        If the request has ended with an error, raises that error.
        """
        with self._lock:
            self.raise_if_failed()
            self._sequences = sequences
            self._unfinished = len(sequences)

    def raise_if_failed(self) -> None:
        """Raise the error that ended the request, if there is one."""
        if self._failure is not None:
            raise self._failure

    def check(self, now: float) -> None:
        """End the request if its client has left or its deadline has passed. Abandon late calls."""
        if self._sender.is_cancelled():
            self.fail(Cancelled())
        elif now > self._deadline:
            self.fail(DeadlineExceeded(f"the request exceeded its timeout of {self._timeout:g} s"))
        overdue = self.call_slot.check(now)
        if overdue is not None:
            if self.permit is not None:
                self.permit.release()
            self.fail(overdue)
        for sequence in self._sequences:
            sequence.check(now)

    def fail(self, error: Failure) -> None:
        """Interrupt all prompts and send the error to the client. Never blocks."""
        with self._lock:
            if self._failure is not None or self._sender.closed:
                return
            self._failure = error
            sequences = self._sequences
        if self.permit is not None:
            self.permit.leave_queue()
        self.arrivals.leave()
        for sequence in sequences:
            sequence.interrupt(error)
        self._sender.send_error(error.line, error.code, error.field)

    def add_output(self, output: SequenceOutput) -> None:
        """Send a sequence's chunk or, without streaming, the answers to all prompts together."""
        with self._sending:
            self._unfinished -= output.finish_reason is not None
            last = self._unfinished == 0
            self._unsent.append(output)
            if last or self.options.stream:
                outputs = sorted(self._unsent, key=lambda unsent: unsent.index)
                self._unsent = []
                self._sender.send(self._response_builder.response(outputs), final=last)


@contextmanager
def fail_on_error(state: RequestState) -> Iterator[None]:
    """End the request if the code inside the context raises."""
    try:
        yield
    except (Abandoned, Cancelled):
        return
    except ServingError as error:
        state.fail(error)
    except BaseException as error:  # noqa: BLE001  the client must get an answer
        log_exception("failed to start a request", error)
        state.fail(ServingError("internal error while starting the request; see the server's log"))
