"""What all decodings share: the engines, the calls to them, the count of calls that were lost."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from bls.effects import EngineRole
from bls.errors import EngineError
from bls.settings import LoopSettings
from bls.triton.awaited import LostCalls
from bls.triton.background import in_background
from bls.triton.calls import Calls
from bls.triton.engine import Engine


class Driver:
    """The engines of a deployment and how they are called."""

    def __init__(self, settings: LoopSettings) -> None:
        self.settings = settings
        self.calls = Calls()
        self.lost = LostCalls()
        self.engines: dict[EngineRole, Engine] = {"target": Engine("target", settings)}
        if settings.draft_model is not None:
            self.engines["draft"] = Engine("draft", settings)

    def stop(self, model: str, request_id: str) -> None:
        """Tell an engine to give up a call. It may be the one that hangs, so nobody waits."""
        for engine in self.engines.values():
            if engine.model == model:
                request = engine.stop_request(request_id)
                in_background(partial(self._send_quietly, engine, request))

    def _send_quietly(self, engine: Engine, request: Any) -> None:
        # An error means that the call has ended before, or will run into its time-out.
        with suppress(EngineError):
            self.calls.once(engine.model, request, decoupled=engine.decoupled)
