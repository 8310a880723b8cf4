"""Whether the draft engine answers: one that failed rests, and is tried again."""

from __future__ import annotations

import threading
import time
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import EngineCallError, EngineRefused, Overloaded
from tandem.bls.triton.background import in_background
from tandem.bls.triton.calls import Calls
from tandem.bls.triton.engine_client import EngineClient


class DraftHealth:
    """Shared by all requests. After a failure one probe, and no request, finds out what is next.

    A probe of an engine whose process has died never returns. It is not repeated: drafts stay off
    until the engine answers it, in practice until the server is started anew. One that takes longer
    than a draft may take does not count.
    """

    def __init__(self, engine: EngineClient, calls: Calls, pause: float) -> None:
        self._engine = engine
        self._calls = calls
        self._pause = pause
        self._lock = threading.Lock()
        self._last_refusal = ""
        self.available = True

    def failed(self, error: EngineCallError) -> None:
        """Let the engine rest; the first to notice says so in the log and starts the probe."""
        with self._lock:
            if not self.available:
                return
            self.available = False
        pb_utils.Logger.log_warn(f"tandem: answers go on without drafts: {error}")
        in_background(self._probe_until_well, self._probe_later)

    def refused(self, error: EngineRefused) -> None:
        """Say once in the log why a request goes on without drafts; others keep theirs."""
        if self._last_refusal != str(error):
            self._last_refusal = str(error)
            pb_utils.Logger.log_warn(f"tandem: a request goes on without drafts: {error}")

    def _probe_later(self, _: Overloaded) -> None:
        """Let the next failure start the probe: this one found no thread for it."""
        self.available = True

    def _probe_until_well(self) -> None:
        while True:
            time.sleep(self._pause)
            began = time.monotonic()
            try:
                self._probe()
            except EngineCallError:
                continue
            if time.monotonic() - began < self._engine.timeout:
                break
        self.available = True
        pb_utils.Logger.log_info(f"tandem: model '{self._engine.model}' answers; drafts are back")

    def _probe(self) -> None:
        engine = self._engine
        request = engine.probe_request("tandem-probe")
        self._calls.infer(engine.model, request, decoupled=engine.decoupled)


class NoDraftEngine:
    """Stands where a deployment has no draft engine."""

    available = False

    def failed(self, error: Any) -> None:
        """Nothing was called."""

    def refused(self, error: Any) -> None:
        """Nothing was called."""
