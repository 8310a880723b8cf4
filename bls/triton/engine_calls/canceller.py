"""Stops engine calls that nobody waits for any more."""

from __future__ import annotations

import queue

from tandem.bls.errors import EngineCallError
from tandem.bls.triton.background import in_background, log_exception
from tandem.bls.triton.engine_calls.calls import Calls
from tandem.bls.triton.engine_calls.engine_client import EngineClient

# Few: an engine that hangs answers no `stop` either, and then has these threads for good.
THREADS = 4


class Canceller:
    """The calls with `stop` to one engine. Thread-safe."""

    def __init__(self, engine: EngineClient, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls
        self._request_ids: queue.SimpleQueue[str] = queue.SimpleQueue()
        for _ in range(THREADS):
            in_background(self._send)

    def add(self, request_id: str) -> None:
        """Stop the call of that id soon, without waiting for it."""
        self._request_ids.put(request_id)

    def _send(self) -> None:
        settings = self._engine.settings
        while True:
            request_id = self._request_ids.get()
            try:
                request = self._engine.stop_request(request_id)
                self._calls.infer(settings.model, request, decoupled=settings.decoupled)
            except EngineCallError:
                continue  # the call has ended before, or will run into its time-out
            except Exception as error:  # noqa: BLE001  the next call is to be stopped all the same
                log_exception("a call of an engine could not be stopped", error)
