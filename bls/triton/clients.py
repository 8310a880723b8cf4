"""What all decodings share: the engines, the calls to them, the count of abandoned calls."""

from __future__ import annotations

import threading

from tandem.bls.effects import EngineRole
from tandem.bls.settings import MAX_HELPERS, LoopSettings
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.canceller import Canceller
from tandem.bls.triton.engine_client import EngineClient
from tandem.bls.triton.pending_call import AbandonedCalls


class EngineClients:
    """The engines of a deployment and how they are called."""

    def __init__(self, settings: LoopSettings) -> None:
        self.settings = settings
        self.calls = Calls()
        self.abandoned = AbandonedCalls()
        self.helpers = threading.BoundedSemaphore(MAX_HELPERS)  # that sequences may have
        self.engines: dict[EngineRole, EngineClient] = {"target": EngineClient("target", settings)}
        if settings.draft_model is not None:
            self.engines["draft"] = EngineClient("draft", settings)
        self._cancellers = {e.model: Canceller(e, self.calls) for e in self.engines.values()}

    def stop(self, model: str, request_id: str) -> None:
        """Have a model stop a call, if it is an engine."""
        if model in self._cancellers:
            self._cancellers[model].add(request_id)
