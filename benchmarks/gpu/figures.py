"""Logs results immediately, and limits the duration of a run."""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from tandem.engines.errors import first_line

log = logging.getLogger(__name__)


class FigureLog:
    """Prints each result and appends it to a file, so that an aborted run keeps its results."""

    def __init__(self, file: Path | None) -> None:
        self.num_failed = 0
        self._file = file
        self._console = Console(highlight=False, soft_wrap=True)
        if file:
            file.write_text("")

    def head(self, device: torch.device, **facts: object) -> None:
        """Record a description of the machine."""
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
        self.add(
            "machine",
            gpu=gpu,
            cores=os.cpu_count(),
            python=platform.python_version(),
            torch=torch.__version__,
            **facts,
        )

    def fail(self, name: str, error: Exception) -> None:
        self.num_failed += 1
        self.add(f"failed: {name}", error=first_line(error))

    def add(self, name: str, **figures: object) -> None:
        self.num_failed += bool(figures.get("wrong"))
        shown = {key: f"{v:.4g}" if isinstance(v, float) else v for key, v in figures.items()}
        self._console.print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in shown.items()))
        if self._file:
            with self._file.open("a") as file:
                file.write(json.dumps({"name": name, **figures}, default=str) + "\n")


class TimeBudget:
    """Runs measurements until the time is used up, and continues after a failed measurement.

    Skips a measurement if it would exceed the budget, estimated by the longest measurement of the
    same kind.
    """

    def __init__(
        self, figures: FigureLog, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.figures = figures
        self._clock = clock
        self._end = clock() + seconds
        self._longest: dict[str, float] = {}

    @property
    def left(self) -> float:
        return self._end - self._clock()

    def part(self, fraction: float) -> TimeBudget:
        """Return a new budget with a fraction of the time left in this one."""
        return TimeBudget(self.figures, fraction * self.left, self._clock)

    def run(self, kind: str, name: str, measure: Callable[[], object]) -> None:
        """Run a measurement if it is expected to fit into the budget."""
        if self.left <= self._longest.get(kind, 0.0):
            self.figures.add(f"left out: {name}", seconds_left=self.left)
            return
        began = self._clock()
        try:
            measure()
        except Exception as error:
            log.exception("%s failed", name)
            self.figures.fail(name, error)
        self._longest[kind] = max(self._longest.get(kind, 0.0), self._clock() - began)
