"""The model.py of an engine that can fail: the real engine, wrapped in `FaultyEngine`."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from real_model import TritonPythonModel as RealModel

from tandem.engines.errors import ClosingError

DELAYS = {"slow": 0.02, "late": 0.6}  # seconds
POLL_SECONDS = 0.01


class FaultyEngine:
    """Wraps a real engine, and injects faults before calls or answers."""

    def __init__(self, engine: Any, fault: Path) -> None:
        self._engine = engine
        self._fault = fault
        self.capabilities = engine.capabilities
        self.stop = engine.stop
        self.close = engine.close

    @property
    def computed_tokens(self) -> int:
        return self._engine.computed_tokens

    def submit(self, request: Any, respond: Any) -> None:
        """Apply the fault if one is set, otherwise pass the call on."""
        kind, _, once = _read(self._fault).partition(" ")
        if once:
            self._fault.unlink()
        if kind == "raise":
            raise RuntimeError("a planted fault")
        if kind == "leave":
            raise ClosingError
        if kind == "lose":
            return
        if kind == "hold":
            held = (request, respond)
            threading.Thread(target=self._submit_when_over, args=held, daemon=True).start()
        elif kind in DELAYS:
            delay = DELAYS[kind]
            self._engine.submit(
                request, lambda answer: threading.Timer(delay, respond, (answer,)).start()
            )
        else:
            self._engine.submit(request, respond)

    def _submit_when_over(self, request: Any, respond: Any) -> None:
        """Hold a call until the fault ends; until then, a `stop` doesn't reach the call."""
        while _read(self._fault) == "hold":
            time.sleep(POLL_SECONDS)
        self._engine.submit(request, respond)


def _read(fault: Path) -> str:
    try:
        return fault.read_text()
    except FileNotFoundError:
        return ""


class TritonPythonModel(RealModel):
    """The class that Triton's Python backend loads."""

    def load_engine(self, model_config: dict[str, Any], folder: Path) -> FaultyEngine:
        return FaultyEngine(super().load_engine(model_config, folder), folder / "fault")
