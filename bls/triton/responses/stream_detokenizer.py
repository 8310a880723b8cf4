"""Detokenizes a stream off the critical path."""

from __future__ import annotations

import queue
from collections.abc import Callable

import numpy as np

from tandem.bls.effects import Chunk
from tandem.bls.errors import Failure
from tandem.bls.request import Request
from tandem.bls.text.detokenizer import detokenize_stream
from tandem.bls.text.token_details import join_details
from tandem.bls.triton.driver import Driver
from tandem.bls.triton.engine_calls.clients import EngineClients


class StreamDetokenizer:
    """Adds text to the chunks of one sequence, on a separate thread.

    emit: called with each chunk that has its text. fail: called with the error if detokenization
    fails. running: whether the thread is running.
    """

    def __init__(
        self,
        clients: EngineClients,
        request: Request,
        emit: Callable[[Chunk], None],
        fail: Callable[[Failure], None],
    ) -> None:
        self.running = False
        self._emit = emit
        self._fail = fail
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()  # None: interrupted
        steps = detokenize_stream(request, iter(self._take, None))
        self._driver = Driver(clients, steps, request, self)

    def start(self) -> None:
        self.running = True
        self._driver.start()

    def put(self, chunk: Chunk) -> None:
        """Queue a chunk without text."""
        self._chunks.put(chunk)

    def check(self, now: float) -> None:
        """Abandon the current call if it is overdue."""
        self._driver.check(now)

    def interrupt(self, reason: Failure) -> None:
        self._driver.interrupt(reason)
        self._chunks.put(None)

    def deliver(self, chunk: Chunk) -> None:
        """Emit a chunk that has its text."""
        self._emit(chunk)

    def on_end(self, error: Failure | None) -> None:
        """Record the end, and report an error."""
        self.running = False
        if error is not None:
            self._fail(error)

    def _take(self) -> Chunk | None:
        """Wait for chunks, and return all queued ones as one; None after an interruption."""
        chunks = [self._chunks.get()]
        while not self._chunks.empty():
            chunks.append(self._chunks.get())
        known = [chunk for chunk in chunks if chunk is not None]
        if len(known) < len(chunks):
            return None
        if len(known) == 1:
            return known[0]
        return known[-1]._replace(
            tokens=np.concatenate([chunk.tokens for chunk in known]),
            details=join_details([chunk.details for chunk in known]),
        )
