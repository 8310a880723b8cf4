"""One prompt of a request while it waits and decodes."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from tandem.bls.admission.admission import Admission, Reservation
from tandem.bls.effects import Chunk, FinishReason
from tandem.bls.errors import Failure
from tandem.bls.loop import Decoding
from tandem.bls.metrics.request_statistics import Totals
from tandem.bls.metrics.timeline import Timeline
from tandem.bls.text.token_details import TokenDetails, joined
from tandem.bls.triton.driver import Driver
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.metrics import Metrics
from tandem.bls.triton.responses.response_builder import SequenceOutput
from tandem.bls.triton.responses.stream_detokenizer import StreamDetokenizer


class SequenceObserver(Protocol):
    """The request that a sequence belongs to."""

    arrival_ns: int

    def sequence_advanced(self, output: SequenceOutput) -> None:
        """Take what a sequence has to send."""

    def fail(self, error: Failure) -> None:
        """End the whole request."""


class SequenceState:
    """One prompt of a request: from its place in the queue to its last token."""

    def __init__(
        self,
        index: int,
        decoding: Decoding,
        prefix: str,
        request: SequenceObserver,
        metrics: Metrics,
    ) -> None:
        self._index = index
        self._decoding = decoding
        self._text = [prefix] if prefix else []
        self._unsent_text = prefix
        self._unsent: list[Chunk] = []
        self._details: list[TokenDetails] = []
        self._cum_log_prob = 0.0
        self._is_first = True  # output
        self._finish_reason: FinishReason | None = None
        self._detokenizer = (
            StreamDetokenizer(self.emit, request.fail)
            if decoding.request.detokenizes_off_path
            else None
        )
        self._request = request
        self._metrics = metrics
        self._driver: Driver | None = None
        self._reservation: Reservation | None = None
        self._admission: Admission | None = None
        self._interruption: Failure | None = None
        self._ended = False
        self._timeline = Timeline(request.arrival_ns)
        self._lock = threading.Lock()

    @property
    def decodes(self) -> bool:
        """Whether a thread still decodes or detokenizes it."""
        detokenizes = self._detokenizer is not None and not self._detokenizer.done
        return self._driver is not None and (detokenizes or not self._ended)

    def queue(
        self, admission: Admission, reservation: Reservation, clients: EngineClients
    ) -> Reservation:
        """Return the reservation, which will start this sequence."""
        self._admission = admission
        self._reservation = reservation
        reservation.start = lambda: self._start(clients)
        return reservation

    def check(self, now: float) -> None:
        """Abandon calls under way that are overdue."""
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
        """Take what a round made final; the next round does not wait for its text."""
        self._timeline.delivered(len(chunk.tokens))
        if self._detokenizer is not None:
            self._detokenizer.put(chunk)
        else:
            self.emit(chunk)

    def emit(self, chunk: Chunk) -> None:
        """Add a chunk with its text to the answer; report it if there is something to send."""
        self._finish_reason = chunk.finish_reason
        self._unsent_text += chunk.text
        self._unsent.append(chunk)
        self._text.append(chunk.text)
        self._details.append(chunk.details)
        if chunk.details.log_probs is not None:
            self._cum_log_prob += float(chunk.details.log_probs.sum())
        if self._unsent_text or chunk.finish_reason is not None:
            tokens = np.concatenate([unsent.tokens for unsent in self._unsent])
            details = joined([unsent.details for unsent in self._unsent])
            output = self._output(self._unsent_text, tokens, chunk.totals, details)
            self._unsent_text, self._unsent = "", []
            self._is_first = False
            self._request.sequence_advanced(output)

    def ended(self, error: Failure | None) -> None:
        """Release the reservation; an error ends the whole request."""
        decoding = self._decoding
        self._metrics.count(decoding.request.drafter, decoding.statistics, self._timeline)
        self._ended = True  # from now on the watcher may forget it, with its metrics published
        if self._admission is not None and self._reservation is not None:
            self._admission.leave(self._reservation)
        if error is not None:
            self._request.fail(error)

    def whole(self) -> SequenceOutput:
        """The complete answer to this prompt."""
        decoding = self._decoding
        self._is_first = True
        return self._output(
            "".join(self._text),
            decoding.sequence.output,
            decoding.statistics.totals,
            joined(self._details),
        )

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

    def _output(
        self, text: str, tokens: Any, totals: Totals, details: TokenDetails
    ) -> SequenceOutput:
        decoding, timeline = self._decoding, self._timeline
        return SequenceOutput(
            self._index,
            text,
            tokens,
            self._finish_reason,
            totals,
            details,
            decoding,
            timeline,
            cum_log_prob=self._cum_log_prob,
            prompt_log_probs=decoding.prompt_log_probs if self._is_first else None,
        )
