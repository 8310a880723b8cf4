"""Tracks the health of the draft engine. After a failure, calls pause until a probe succeeds."""

from __future__ import annotations

import threading
import time

from tandem.bls.admission.admission import Reservation
from tandem.bls.drafters.drafter import DrafterHealth
from tandem.bls.errors import EngineCallError, Overloaded
from tandem.bls.triton.background import log_exception, log_info, log_warning, run_in_background
from tandem.bls.triton.engine_calls.clients import EngineClient


class DraftEngineHealth:
    """The `DrafterHealth` of the draft engine, shared by all requests.

    After a failure, probes are sent until one of them succeeds within the timeout of a draft call.
    If the engine's process has died, a probe never returns, so the pause lasts until the server
    restarts.

    engine: None if the deployment has no draft engine. pause: seconds before each probe.
    """

    def __init__(self, engine: EngineClient | None, pause: float) -> None:
        self._engine = engine
        self._pause = pause
        self._lock = threading.Lock()
        self._last_rejection = ""
        self.available = engine is not None

    def failed(self, error: EngineCallError) -> None:
        """Pause calls to the engine. The first failure is logged and starts the probes."""
        engine = self._engine
        with self._lock:
            if engine is None or not self.available:
                return
            self.available = False
        log_warning(f"requests continue without the draft model: {error}")
        run_in_background(lambda: self._probe_until_healthy(engine), self._resume_without_probe)

    def rejected(self, error: Exception, without: str = "drafts") -> None:
        """Log why a request continues without drafts. Repetitions aren't logged."""
        line = f"a request continues without {without}: {error}"
        if self._last_rejection != line:
            self._last_rejection = line
            log_warning(line)

    def _resume_without_probe(self, _: Overloaded) -> None:
        """Resume calls without a probe, because no thread is free.

        The next failure starts another probe.
        """
        self.available = True

    def _probe_until_healthy(self, engine: EngineClient) -> None:
        while True:
            time.sleep(self._pause)
            began = time.monotonic()
            try:
                engine.probe()
            except EngineCallError:
                continue
            except Exception as error:  # noqa: BLE001  without this thread, drafts would stay off
                log_exception("failed to probe the draft engine", error)
                continue
            if time.monotonic() - began < engine.settings.timeout:
                break
        self.available = True
        log_info(f"model '{engine.settings.model}' responds again; it drafts again")


class SequenceDraftHealth:
    """The `DrafterHealth` of one sequence, which also needs blocks in the draft engine's cache."""

    def __init__(self, reservation: Reservation, health: DrafterHealth) -> None:
        self._reservation = reservation
        self._health = health

    @property
    def available(self) -> bool:
        return self._reservation.has_draft_blocks and self._health.available

    def failed(self, error: EngineCallError) -> None:
        self._health.failed(error)

    def rejected(self, error: Exception, without: str = "drafts") -> None:
        self._health.rejected(error, without)
