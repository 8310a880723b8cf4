"""One client request: its prompts decode side by side, its answer goes out once or in chunks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tandem.bls.admission import Admission, Places, Reservation
from tandem.bls.effects import Chunk, FinishReason
from tandem.bls.errors import Cancelled, DeadlineExceeded, EngineTimeout, Failure
from tandem.bls.loop import Decoding
from tandem.bls.prompt import Options
from tandem.bls.request import Request
from tandem.bls.statistics import Totals
from tandem.bls.text import detokenize_stream
from tandem.bls.timeline import Timeline
from tandem.bls.triton.clients import EngineClients
from tandem.bls.triton.driver import ChunkQueue, Driver
from tandem.bls.triton.metrics import Metrics
from tandem.bls.triton.pending_call import CallSlot
from tandem.bls.triton.response_builder import ResponseBuilder, SequenceOutput
from tandem.bls.triton.sender import Sender
from tandem.bls.turns import Turn


class RequestState:
    """Everything between a request and the last response to it. Thread-safe."""

    def __init__(
        self,
        sender: Sender,
        response_builder: ResponseBuilder,
        options: Options,
        *,
        deadline: float,
        timeout: float,
        wait: CallSlot,
        places: Places,
    ) -> None:
        self.options = options
        self.wait = wait  # for the tokenizer, before the prompts have lanes
        self.places = places  # theirs in the queue, from the beginning
        self.turn: Turn | None = None  # at the tokenizer
        self.arrival_ns = time.time_ns()
        self._sender = sender
        self._response_builder = response_builder
        self._deadline = deadline
        self._timeout = timeout
        self._sequences: Sequence[SequenceState] = ()
        self._unfinished = 0
        self._failure: Failure | None = None
        self._lock = threading.Lock()  # the watcher takes it: nobody may wait with it held
        self._telling = threading.Lock()  # parts go out one after the other, the last one last

    @property
    def closed(self) -> bool:
        """Whether the last response has been sent and no model is at work for it any more."""
        busy = self.wait.call is not None or any(sequence.decodes for sequence in self._sequences)
        return self._sender.closed and not busy

    def open(self, sequences: Sequence[SequenceState]) -> None:
        """Take the prompts in; they may start at any moment from now on.

        Raises what ended the request, if that has happened before.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._sequences = sequences
            self._unfinished = len(sequences)

    def check(self, now: float) -> None:
        """Notice that the client has gone, that time is up, or that an engine is overdue."""
        if self._sender.is_cancelled():
            self.fail(Cancelled())
        elif now > self._deadline:
            self.fail(
                DeadlineExceeded(
                    f"the request took longer than {self._timeout:g} s, which is its time-out"
                )
            )
        overdue = self.wait.abandon_if_overdue(now)
        if overdue is not None:
            if self.turn is not None:
                self.turn.end()
            self.fail(EngineTimeout(overdue.model, overdue.timeout))
        for sequence in self._sequences:
            sequence.check(now)

    def fail(self, error: Failure) -> None:
        """End the whole request: one line to the client, every prompt's decoding interrupted.

        It waits for nobody.
        """
        with self._lock:
            if self._failure is not None or self._sender.closed:
                return
            self._failure = error
            sequences = self._sequences
        if self.turn is not None:
            self.turn.withdraw()
        self.places.give_back()
        for sequence in sequences:
            sequence.interrupt(error)
        self._sender.refuse(str(error), error.code)

    def sequence_advanced(self, part: SequenceOutput) -> None:
        """Hear of a prompt's progress: send a chunk, or the whole answer once all are complete."""
        with self._telling:
            self._unfinished -= part.finish_reason is not None
            last = self._unfinished == 0
            if self.options.stream:
                self._sender.send(self._response_builder.response([part]), final=last)
            elif last:
                parts = [sequence.whole() for sequence in self._sequences]
                self._sender.send(self._response_builder.response(parts), final=True)


class SequenceState:
    """One prompt of a job: from its place in the queue to its last token."""

    def __init__(
        self,
        index: int,
        decoding: Decoding,
        prefix: str,
        state: RequestState,
        metrics: Metrics,
    ) -> None:
        self._index = index
        self._decoding = decoding
        self._text = [prefix] if prefix else []
        self._unsent_text = prefix
        self._unsent_tokens: list[Any] = []
        self._finish_reason: FinishReason | None = None
        self._detokenizer = (
            StreamDetokenizer(self) if decoding.request.detokenizes_off_path else None
        )
        self._state = state
        self._metrics = metrics
        self._driver: Driver | None = None
        self._reservation: Reservation | None = None
        self._admission: Admission | None = None
        self._interruption: Failure | None = None
        self._ended = False
        self._timeline = Timeline(state.arrival_ns)
        self._lock = threading.Lock()

    @property
    def decodes(self) -> bool:
        """Whether a thread carries it, or its text."""
        tells = self._detokenizer is not None and not self._detokenizer.done
        return self._driver is not None and (tells or not self._ended)

    def queue(
        self, admission: Admission, reservation: Reservation, clients: EngineClients
    ) -> Reservation:
        """Return the ticket, which will start this lane."""
        self._admission = admission
        self._reservation = reservation
        reservation.start = lambda: self._start(clients)
        return reservation

    def check(self, now: float) -> None:
        """Look after the calls under way."""
        if self._driver is not None:
            self._driver.check(now)
        if self._detokenizer is not None:
            self._detokenizer.check(now)

    def interrupt(self, reason: Failure) -> None:
        """Stop decoding, or leave the queue."""
        with self._lock:
            self._interruption = reason
            driver = self._driver
        if driver is not None:
            driver.interrupt(reason)
            if self._detokenizer is not None:
                self._detokenizer.interrupt(reason)
        elif self._admission is not None and self._reservation is not None:
            self._admission.withdraw(self._reservation)

    def deliver(self, chunk: Chunk) -> None:
        """Take what a round made final; the next one does not wait for its text."""
        self._timeline.delivered(len(chunk.tokens))
        if self._detokenizer is not None:
            self._detokenizer.put(chunk)
        else:
            self.show(chunk)

    def show(self, chunk: Chunk) -> None:
        """Tell the job of a chunk where there is something to show."""
        self._finish_reason = chunk.finish_reason
        self._unsent_text += chunk.text
        self._unsent_tokens.append(chunk.tokens)
        self._text.append(chunk.text)
        if self._unsent_text or chunk.finish_reason is not None:
            tokens = np.concatenate(self._unsent_tokens)
            part = self._part(self._unsent_text, tokens, chunk.totals)
            self._unsent_text, self._unsent_tokens = "", []
            self._state.sequence_advanced(part)

    def ended(self, error: Failure | None) -> None:
        """Make room for others; an error ends the whole job."""
        decoding = self._decoding
        self._metrics.count(decoding.request.drafter, decoding.statistics, self._timeline)
        self._ended = True  # from now on the watcher may forget it, with its figures published
        if self._admission is not None and self._reservation is not None:
            self._admission.leave(self._reservation)
        if error is not None:
            self._state.fail(error)

    def whole(self) -> SequenceOutput:
        """The complete answer to this prompt."""
        decoding = self._decoding
        return self._part("".join(self._text), decoding.sequence.output, decoding.statistics.totals)

    def fail(self, error: Failure) -> None:
        """End the whole job."""
        self._state.fail(error)

    def _start(self, clients: EngineClients) -> None:
        with self._lock:
            self._timeline.scheduled()
            if self._interruption is None:
                request = self._decoding.request
                self._driver = Driver(clients, self._decoding.decode(), request, self)
                if self._detokenizer is not None:
                    self._detokenizer.start(clients, request)
                self._driver.start()
                return
        self.ended(self._interruption)

    def _part(self, text: str, tokens: Any, totals: Totals) -> SequenceOutput:
        decoding, timeline = self._decoding, self._timeline
        return SequenceOutput(
            self._index, text, tokens, self._finish_reason, totals, decoding, timeline
        )


class StreamDetokenizer:
    """Tells a lane's text beside its decoding, on a thread of its own."""

    def __init__(self, sequence: SequenceState) -> None:
        self.done = False
        self._sequence = sequence
        self._chunk_queue = ChunkQueue()
        self._driver: Driver | None = None

    def start(self, clients: EngineClients, request: Request) -> None:
        """Begin to listen."""
        self._driver = Driver(clients, detokenize_stream(), request, self, self._chunk_queue)
        self._driver.start()

    def put(self, chunk: Chunk) -> None:
        """Take tokens whose text is wanted."""
        self._chunk_queue.put(chunk)

    def check(self, now: float) -> None:
        """Look after the call under way."""
        if self._driver is not None:
            self._driver.check(now)

    def interrupt(self, reason: Failure) -> None:
        """Stop telling."""
        if self._driver is not None:
            self._driver.interrupt(reason)

    def deliver(self, chunk: Chunk) -> None:
        """Show what has its text."""
        self._sequence.show(chunk)

    def ended(self, error: Failure | None) -> None:
        """Pass an error on."""
        self.done = True
        if error is not None:
            self._sequence.fail(error)
