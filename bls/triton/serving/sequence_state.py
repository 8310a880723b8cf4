"""The state of one prompt of a request."""

from __future__ import annotations

import queue
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tandem.bls.admission.admission import Admission, Reservation
from tandem.bls.errors import Failure, Overloaded, ServingError
from tandem.bls.loop import Decoding
from tandem.bls.ports import Chunk
from tandem.bls.statistics import Timeline
from tandem.bls.text import Decode
from tandem.bls.token_details import join_details
from tandem.bls.triton.background import log_exception, run_in_background
from tandem.bls.triton.engine_calls.clients import EngineClients
from tandem.bls.triton.metrics import Metrics
from tandem.bls.triton.responses.response_builder import SequenceOutput
from tandem.bls.triton.sequence_thread import SequenceThread

if TYPE_CHECKING:
    from tandem.bls.triton.serving.request_state import RequestState

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
        self._running = self._sending = False  # whether threads are decoding and sending
        self._outbox: Outbox | None = None  # of the thread that sends a stream
        self.reservation = reservation
        reservation.start = self._start

    @property
    def is_active(self) -> bool:
        """Whether a thread is still decoding or sending this sequence."""
        return self._running or self._sending

    def check(self, now: float) -> None:
        """Abandon overdue calls."""
        self._thread.check(now)

    def interrupt(self, reason: Failure) -> None:
        """Stop decoding, and leave the queue. If the sequence starts later, it ends immediately."""
        self._thread.interrupt(reason)
        self._admission.remove_waiting(self.reservation)

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
        self._sending = True
        try:
            run_in_background(partial(self._send_stream, outbox))
        except Overloaded:
            self._sending = False
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
        self._sending = False

    def _emit(self, chunks: list[Chunk]) -> None:
        """Append chunks to the output, and send the output if it is ready.

        In a stream, output with text is ready; otherwise only the complete answer is.
        """
        for chunk in chunks:
            self._append(chunk)
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

    def _append(self, chunk: Chunk) -> None:
        self._unsent_text.append(chunk.text)
        self._unsent.append(chunk)
        if chunk.details.log_probs is not None:
            self._cum_log_prob += float(chunk.details.log_probs.sum())

    def on_end(self, error: Failure | None) -> None:
        """Count the sequence and release its reservation. An error ends the whole request."""
        decoding = self._decoding
        self._metrics.count(decoding.request.drafter, decoding.statistics, self._timeline)
        self._running = False  # after the metrics, because the watcher may now drop the request
        self._admission.release(self.reservation)
        if self._outbox is not None:
            self._outbox.put(None)
        if error is not None:
            self._request.fail(error)

    def _start(self) -> None:
        self._timeline.mark_scheduled()
        self._running = True
        self._thread.start()
