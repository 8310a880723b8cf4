"""The state of one client request, whose prompts decode in parallel."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tandem.bls.admission.admission import Arrivals
from tandem.bls.admission.concurrency_limiter import Permit
from tandem.bls.errors import Abandoned, Cancelled, DeadlineExceeded, Failure, ServingError
from tandem.bls.request import Options
from tandem.bls.triton.background import log_exception
from tandem.bls.triton.engine_calls.call_slot import CallSlot
from tandem.bls.triton.responses.response_builder import ResponseBuilder, SequenceOutput
from tandem.bls.triton.responses.sender import Sender
from tandem.bls.triton.serving.sequence_state import SequenceState


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
            sequence.is_active for sequence in self._sequences
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
        self._sender.send_error(error.line, error.code)

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
