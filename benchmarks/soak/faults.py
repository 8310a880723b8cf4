"""Injects faults one after the other, and decides which errors they explain."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.faulty import Fault, Faults
from tandem.contract.errors import split_class

POLL = 0.02
# Maximum seconds between a fault and the errors that it causes: the longest timeout plus a margin.
SECONDS_FELT = 15.0
# Maximum number of lost calls. Each blocks a thread until the server ends; 32 block the server.
MAX_LOST = 8


class FaultStep(NamedTuple):
    """A fault of one model, after a pause of ``rest`` seconds.

    seconds: duration of the fault; a "once" fault ends after it has affected one call.
    """

    model: str
    fault: Fault
    seconds: float
    rest: float


STEPS = (
    FaultStep("draft", "raise", 1.5, 4.0),
    FaultStep("preprocessing", "hold", 0.7, 2.0),
    FaultStep("target", "raise once", 5.0, 3.0),
    FaultStep("draft", "hold", 3.0, 5.0),
    FaultStep("target", "late", 1.5, 3.0),
    FaultStep("postprocessing", "hold", 0.7, 2.0),
    FaultStep("draft", "late", 2.0, 4.0),
    FaultStep("postprocessing", "raise", 0.2, 3.0),
    FaultStep("target", "lose once", 5.0, 3.0),
    FaultStep("preprocessing", "raise", 0.2, 3.0),
    FaultStep("target", "hold", 6.0, 6.0),
)


class PastFault(NamedTuple):
    """A fault that was active from ``begin`` to ``end`` (monotonic seconds)."""

    model: str
    begin: float
    end: float


class FaultInjector:
    """Context manager that repeats the fault steps in a thread."""

    def __init__(self, models: Path) -> None:
        self.injected: Counter[str] = Counter()
        self._faults = Faults(models)
        self._past: list[PastFault] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> FaultInjector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread; it ends the current fault."""
        self._over.set()
        self._thread.join()

    @property
    def lost(self) -> int:
        """Number of calls to the target that will never be answered."""
        return self.injected["target lose once"]

    def explains(self, error: str, began: float, ended: float) -> bool:
        """Return whether a fault that was active during a request explains its error."""
        _, line = split_class(error)
        return any(
            line.startswith(f"model '{fault.model}' failed: ")
            for fault in list(self._past)
            if fault.model != "draft" and fault.begin <= ended and began <= fault.end + SECONDS_FELT
        )

    def _run(self) -> None:
        for step in itertools.cycle(STEPS):
            if self._over.wait(step.rest):
                return
            if step.fault != "lose once" or self.lost < MAX_LOST:
                self._inject(step)

    def _inject(self, step: FaultStep) -> None:
        begin = time.monotonic()
        at = len(self._past)
        self._past.append(PastFault(step.model, begin, begin + step.seconds))
        self._faults.begin(step.model, step.fault)
        struck = self._wait(step)
        self._faults.end(step.model)
        self._past[at] = PastFault(step.model, begin, time.monotonic())
        self.injected[f"{step.model} {step.fault}"] += struck

    def _wait(self, step: FaultStep) -> bool:
        """Wait until the step is over, and return whether it may have affected a call."""
        until = time.monotonic() + step.seconds
        planted = self._faults.file(step.model)
        while time.monotonic() < until and not self._over.wait(POLL):
            if not planted.exists():
                return True
        return not step.fault.endswith("once") or not planted.exists()
