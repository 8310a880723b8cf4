"""Whether the draft engine answers: one that failed rests, and is tried again."""

from __future__ import annotations

import threading
import time

from tandem.bls.errors import EngineCallError, EngineRefused, Overloaded
from tandem.bls.triton.background import in_background, log_exception, log_info, log_warning
from tandem.bls.triton.engine_calls.calls import Calls
from tandem.bls.triton.engine_calls.engine_client import EngineClient


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
        self._refusals = RefusalLog()
        self.available = True

    def failed(self, error: EngineCallError) -> None:
        """Pause the engine; the first caller logs it and starts the probe."""
        with self._lock:
            if not self.available:
                return
            self.available = False
        log_warning(f"answers go on without drafts: {error}")
        in_background(self._probe_until_well, self._probe_later)

    def refused(self, error: EngineRefused) -> None:
        """Say once in the log why a request goes on without drafts; others keep theirs."""
        self._refusals.add(error)

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
            except Exception as error:  # noqa: BLE001  nobody else would ever try it again
                log_exception("a draft engine could not be tried", error)
                continue
            if time.monotonic() - began < self._engine.settings.timeout:
                break
        self.available = True
        model = self._engine.settings.model
        log_info(f"model '{model}' answers; drafts are back")

    def _probe(self) -> None:
        settings = self._engine.settings
        request = self._engine.probe_request("tandem-probe")
        self._calls.infer(settings.model, request, decoupled=settings.decoupled)


class NoDraftEngine:
    """Stands where a deployment has no draft engine."""

    available = False

    def __init__(self) -> None:
        self._refusals = RefusalLog()

    def failed(self, error: EngineCallError) -> None:
        """Nothing was called."""

    def refused(self, error: EngineRefused) -> None:
        """Say once in the log why a request goes on without drafts: its drafter has a fault."""
        self._refusals.add(error)


class RefusalLog:
    """Why requests went on without drafts; the same line is not logged twice in a row."""

    def __init__(self) -> None:
        self._last = ""

    def add(self, error: EngineRefused) -> None:
        """Log an error, unless it is the last one."""
        if self._last != str(error):
            self._last = str(error)
            log_warning(f"a request goes on without drafts: {error}")
