"""Objects that all sequences share to call the engines."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from tandem.bls.effects import EngineRole
from tandem.bls.errors import EngineCallError
from tandem.bls.settings import MAX_AHEAD_THREADS, EngineSettings, LoopSettings
from tandem.bls.triton.background import in_background, log_exception
from tandem.bls.triton.engine_calls.calls import Calls
from tandem.bls.triton.engine_calls.engine_client import EngineClient
from tandem.bls.triton.engine_calls.pending_call import AbandonedCalls

# Threads per engine. An engine that hangs blocks them permanently, because it doesn't answer a
# `stop` either.
CANCELLER_THREADS = 4


class Canceller:
    """Sends `stop` calls to one engine. Thread-safe."""

    def __init__(self, engine: EngineClient, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls
        self._request_ids: queue.SimpleQueue[str] = queue.SimpleQueue()
        for _ in range(CANCELLER_THREADS):
            in_background(self._send)

    def add(self, request_id: str) -> None:
        """Queue a `stop` for the call with this id. Doesn't block."""
        self._request_ids.put(request_id)

    def _send(self) -> None:
        settings = self._engine.settings
        while True:
            request_id = self._request_ids.get()
            try:
                request = self._engine.stop_request(request_id)
                self._calls.infer(settings.model, request, decoupled=settings.decoupled)
            except EngineCallError:
                continue  # the call has ended or will time out
            except Exception as error:  # noqa: BLE001  the next call must still be stopped
                log_exception("failed to stop an engine call", error)


class EngineClients:
    """The engines of a deployment, and the state that their calls share.

    folder: the version folder of the loop's model, which may contain weights of LoRA adapters.
    """

    def __init__(self, settings: LoopSettings, folder: Path = Path()) -> None:
        self.settings = settings
        self.calls = Calls()
        self.abandoned = AbandonedCalls()
        self.ahead_threads = threading.BoundedSemaphore(MAX_AHEAD_THREADS)
        roles: dict[EngineRole, EngineSettings | None] = {
            "target": settings.target,
            "draft": settings.draft,
        }
        self.engines = {
            role: EngineClient(role, engine, settings, folder)
            for role, engine in roles.items()
            if engine
        }
        self._cancellers = {
            engine.settings.model: Canceller(engine, self.calls) for engine in self.engines.values()
        }

    def stop(self, model: str, request_id: str) -> None:
        """Ask a model to stop a call. Does nothing if the model isn't an engine."""
        if model in self._cancellers:
            self._cancellers[model].add(request_id)
