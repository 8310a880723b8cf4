"""The state of one prompt of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tandem.bls.admission.admission import Admission, Reservation
from tandem.bls.effects import Chunk
from tandem.bls.errors import Failure
from tandem.bls.loop import Decoding
from tandem.bls.metrics.timeline import Timeline
from tandem.bls.text.token_details import join_details
from tandem.bls.triton.driver import Driver
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.metrics import Metrics
from tandem.bls.triton.responses.response_builder import SequenceOutput
from tandem.bls.triton.responses.stream_detokenizer import StreamDetokenizer

if TYPE_CHECKING:
    from tandem.bls.triton.serving.request_state import RequestState


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
    ) -> None:
        self._index = index
        self._decoding = decoding
        self._unsent_text = [prefix]
        self._unsent: list[Chunk] = []
        self._cum_log_prob = 0.0
        self._is_first = True  # whether no output has been sent yet
        self._detokenizer = (
            StreamDetokenizer(clients, decoding.request, self.emit, request.fail)
            if decoding.request.detokenizes_off_path
            else None
        )
        self._request = request
        self._metrics = metrics
        self._driver = Driver(clients, decoding.decode(), decoding.request, self)
        self._admission = admission
        self._timeline = Timeline(request.arrival_ns)
        self._running = False  # whether the driver's thread is running
        self.reservation = reservation
        reservation.start = self._start

    @property
    def is_active(self) -> bool:
        """Whether a thread is still decoding or detokenizing this sequence."""
        return self._running or (self._detokenizer is not None and self._detokenizer.running)

    def check(self, now: float) -> None:
        """Abandon overdue calls."""
        self._driver.check(now)
        if self._detokenizer is not None:
            self._detokenizer.check(now)

    def interrupt(self, reason: Failure) -> None:
        """Stop decoding, and leave the queue. If the sequence starts later, it ends immediately."""
        self._driver.interrupt(reason)
        if self._detokenizer is not None:
            self._detokenizer.interrupt(reason)
        self._admission.remove_waiting(self.reservation)

    def deliver(self, chunk: Chunk) -> None:
        """Emit a chunk, or queue it for detokenization so that the next round needn't wait."""
        self._timeline.record_delivery(len(chunk.tokens))
        if self._detokenizer is not None:
            self._detokenizer.put(chunk)
        else:
            self.emit(chunk)

    def emit(self, chunk: Chunk) -> None:
        """Append a chunk with its text to the output, and send the output if it is ready.

        In a stream, output with text is ready; otherwise only the complete answer is.
        """
        self._unsent_text.append(chunk.text)
        self._unsent.append(chunk)
        if chunk.details.log_probs is not None:
            self._cum_log_prob += float(chunk.details.log_probs.sum())
        streams_now = self._decoding.request.stream and any(self._unsent_text)
        if chunk.finish_reason is None and not streams_now:
            return
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
        """Count the sequence and release its reservation. An error ends the whole request."""
        decoding = self._decoding
        self._metrics.count(decoding.request.drafter, decoding.statistics, self._timeline)
        self._running = False  # after the metrics, because the watcher may now drop the request
        self._admission.release(self.reservation)
        if error is not None:
            self._request.fail(error)

    def _start(self) -> None:
        self._timeline.mark_scheduled()
        self._running = True
        if self._detokenizer is not None:
            self._detokenizer.start()
        self._driver.start()
