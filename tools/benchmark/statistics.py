"""Medians over repetitions, and their spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tandem.tools.benchmark.trace import Repetition, Trace
from tandem.tools.benchmark.variant import Variant


class Spread(NamedTuple):
    """The median of repeated measurements, and their 10th and 90th percentiles."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        found = [value for value in values if value is not None]
        if not found:
            return None
        median, p10, p90 = np.percentile(found, [50, 10, 90])
        return cls(float(median), float(p10), float(p90))


class Latency(NamedTuple):
    """The median and the 99th percentile of a latency in seconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency | None:
        return cls(*map(float, np.percentile(values, [50, 99]))) if values else None


@dataclass
class Cell:
    """The measurements of one variant in one scenario with one number of streams.

    whole: repetitions whose answers arrived in one response. streamed: repetitions with streamed
    answers. Repetition i of every cell of a scenario ran under the same conditions, so they can be
    compared.
    """

    scenario: str
    concurrency: int
    variant: Variant
    whole: list[Repetition]
    streamed: list[Repetition]


@dataclass(frozen=True)
class VariantStatistics:
    """A row of the table. Times are in seconds; None means not measured or undefined.

    baseline: the target alone in the same scenario with the same number of streams. alone: the same
    variant with one stream.
    """

    cell: Cell
    baseline: Cell
    alone: Cell | None = None

    def spread(self, name: str) -> Spread | None:
        """Return the spread of a `Repetition` property over all repetitions."""
        return Spread.of(getattr(repetition, name) for repetition in self.cell.whole)

    @property
    def speedup(self) -> Spread | None:
        """Tokens per second relative to the baseline in the same repetition."""
        return Spread.of(self._speedups)

    @property
    def ideal_speedup(self) -> Spread | None:
        """The speedup if an answer took only the engines' time.

        The baseline keeps its own overhead, so a slow baseline can't make the loop look better.
        """
        efficiencies = [r.efficiency for r in self.cell.whole]
        pairs = zip(self._speedups, efficiencies, strict=True)
        return Spread.of(s / e if s and e else None for s, e in pairs)

    @property
    def scaling(self) -> Spread | None:
        """Tokens per second relative to one stream in the same repetition."""
        if self.alone is None:
            return None
        pairs = zip(self.cell.whole, self.alone.whole, strict=True)
        return Spread.of(
            many.tokens_per_second / one.tokens_per_second if one.num_tokens else None
            for many, one in pairs
        )

    @property
    def seconds_to_first_token(self) -> Spread | None:
        return Spread.of(trace.seconds_to_first_token for trace in self._streamed)

    @property
    def inter_token_seconds(self) -> Latency | None:
        """The time per token, over all streamed answers."""
        return Latency.of([s for trace in self._streamed for s in trace.inter_token_seconds])

    @property
    def gap_seconds(self) -> Latency | None:
        """The time between chunks, over all streamed answers."""
        return Latency.of([s for trace in self._streamed for s in trace.gap_seconds])

    @property
    def num_different(self) -> int:
        """Number of answers that differ from the baseline's first answer to the same prompt."""
        wanted: dict[int, str] = {}
        for trace in _traces(self.baseline.whole):
            wanted.setdefault(trace.prompt, trace.text)
        found = [*_traces(self.cell.whole), *self._streamed]
        return sum(trace.text != wanted.get(trace.prompt) for trace in found)

    @property
    def _speedups(self) -> list[float | None]:
        return [
            ours.tokens_per_second / theirs.tokens_per_second if theirs.num_tokens else None
            for ours, theirs in zip(self.cell.whole, self.baseline.whole, strict=True)
        ]

    @property
    def _streamed(self) -> list[Trace]:
        return _traces(self.cell.streamed)


def statistics_of(cells: Sequence[Cell]) -> list[VariantStatistics]:
    """Pair each cell with its baseline and, if measured, with the same variant on one stream."""
    by_place = {(cell.scenario, cell.concurrency, cell.variant): cell for cell in cells}
    baselines = {(c.scenario, c.concurrency): c for c in cells if c.variant.is_baseline}
    return [
        VariantStatistics(
            cell,
            baselines[cell.scenario, cell.concurrency],
            by_place.get((cell.scenario, 1, cell.variant)) if cell.concurrency > 1 else None,
        )
        for cell in cells
    ]


def _traces(repetitions: Iterable[Repetition]) -> list[Trace]:
    return [trace for repetition in repetitions for trace in repetition.answers]
