"""What all decodings share: the engines, the calls to them, the count of abandoned calls."""

from __future__ import annotations

import threading

from tandem.bls.effects import EngineRole
from tandem.bls.settings import MAX_HELPERS, EngineSettings, LoopSettings
from tandem.bls.triton.engine_calls.calls import Calls
from tandem.bls.triton.engine_calls.canceller import Canceller
from tandem.bls.triton.engine_calls.engine_client import EngineClient
from tandem.bls.triton.engine_calls.pending_call import AbandonedCalls


class EngineClients:
    """The engines of a deployment and how they are called."""

    def __init__(self, settings: LoopSettings) -> None:
        self.settings = settings
        self.calls = Calls()
        self.abandoned = AbandonedCalls()
        self.helpers = threading.BoundedSemaphore(MAX_HELPERS)  # that sequences may have
        roles: dict[EngineRole, EngineSettings | None] = {
            "target": settings.target,
            "draft": settings.draft,
        }
        self.engines = {
            role: EngineClient(role, engine, settings) for role, engine in roles.items() if engine
        }
        self._cancellers = {
            engine.settings.model: Canceller(engine, self.calls) for engine in self.engines.values()
        }

    def stop(self, model: str, request_id: str) -> None:
        """Have a model stop a call, if it is an engine."""
        if model in self._cancellers:
            self._cancellers[model].add(request_id)
