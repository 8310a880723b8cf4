"""The time that a run may take: what does not fit any more is left out, and said so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from benchmarks.gpu.figures import FigureLog

log = logging.getLogger(__name__)


class TimeBudget:
    """Runs measurements while there is time, and goes on behind one that fails.

    A measurement is begun where the longest of its kind so far would end in time.
    """

    def __init__(
        self, figures: FigureLog, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._figures = figures
        self._clock = clock
        self._end = clock() + seconds
        self._longest: dict[str, float] = {}

    @property
    def left(self) -> float:
        """Seconds until its end."""
        return self._end - self._clock()

    def part(self, fraction: float) -> TimeBudget:
        """Return one that ends when this fraction of what is left has passed."""
        return TimeBudget(self._figures, fraction * self.left, self._clock)

    def run(self, kind: str, name: str, measure: Callable[[], object]) -> None:
        """Measure, if there is time."""
        if self.left <= self._longest.get(kind, 0.0):
            self._figures.add(f"left out: {name}", seconds_left=self.left)
            return
        began = self._clock()
        try:
            measure()
        except Exception as error:
            log.exception("%s failed", name)
            self._figures.fail(name, error)
        self._longest[kind] = max(self._longest.get(kind, 0.0), self._clock() - began)
