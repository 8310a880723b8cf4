"""What repetitions amount to: medians and their spread. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tandem.tools.benchmark.trace import Repetition, Trace
from tandem.tools.benchmark.variant import Variant

LOW, HIGH = 10, 90  # percentiles of the spread


class Spread(NamedTuple):
    """The median of repeated measurements, and their 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @property
    def is_one(self) -> bool:
        """Whether nothing differed: of a single measurement the percentiles say nothing."""
        return self.low == self.high

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        found = [value for value in values if value is not None]
        if not found:
            return None
        low, median, high = np.percentile(found, [LOW, 50, HIGH])
        return cls(float(median), float(low), float(high))


@dataclass
class Cell:
    """One variant at one scenario and number of streams: whole answers, and streamed ones.

    Repetition i of two cells of a scenario ran side by side: they may be compared one by one.
    """

    scenario: str
    num_streams: int
    variant: Variant
    whole: list[Repetition]
    streamed: list[Repetition]


@dataclass(frozen=True)
class VariantStatistics:
    """A row of the table. Seconds; None where it was not measured or means nothing.

    control: the same scenario and number of streams, without a drafter. alone: the same variant
    with one stream.
    """

    cell: Cell
    control: Cell
    alone: Cell | None = None

    @property
    def tokens_per_second(self) -> Spread | None:
        return Spread.of(r.tokens_per_second for r in self.cell.whole)

    @property
    def speedup(self) -> Spread | None:
        """Tokens a second over those of the control in the same repetition."""
        return Spread.of(self._speedups)

    @property
    def ideal_speedup(self) -> Spread | None:
        """What the speedup would be if an answer took its engine seconds alone.

        The control stays as it was measured, its own orchestration included, so that a slow
        control cannot make the loop look better.
        """
        efficiencies = [r.efficiency for r in self.cell.whole]
        pairs = zip(self._speedups, efficiencies, strict=True)
        return Spread.of(s / e if s and e else None for s, e in pairs)

    @property
    def efficiency(self) -> Spread | None:
        return Spread.of(r.efficiency for r in self.cell.whole)

    @property
    def orchestration_seconds(self) -> Spread | None:
        return Spread.of(r.orchestration_seconds for r in self.cell.whole)

    @property
    def acceptance_rate(self) -> Spread | None:
        return Spread.of(r.acceptance_rate for r in self.cell.whole)

    @property
    def tokens_per_round(self) -> Spread | None:
        return Spread.of(r.tokens_per_round for r in self.cell.whole)

    @property
    def scaling(self) -> Spread | None:
        """Tokens a second over those of one stream in the same repetition."""
        if self.alone is None:
            return None
        pairs = zip(self.cell.whole, self.alone.whole, strict=True)
        return Spread.of(
            many.tokens_per_second / one.tokens_per_second if one.num_tokens else None
            for many, one in pairs
        )

    @property
    def seconds_to_first_token(self) -> Spread | None:
        return Spread.of(trace.seconds_to_first_token for trace in self._streams)

    @property
    def inter_token_seconds(self) -> tuple[float, float] | None:
        """Median and 99th percentile over all tokens of the streamed answers."""
        return _p50_p99([s for trace in self._streams for s in trace.inter_token_seconds])

    @property
    def gap_seconds(self) -> tuple[float, float] | None:
        """Median and 99th percentile of the waits between chunks."""
        return _p50_p99([s for trace in self._streams for s in trace.gap_seconds])

    @property
    def num_different(self) -> int:
        """Answers whose text is not the control's first one to the same prompt."""
        wanted: dict[int, str] = {}
        for trace in _traces(self.control.whole):
            wanted.setdefault(trace.prompt, trace.text)
        found = [*_traces(self.cell.whole), *self._streams]
        return sum(trace.text != wanted.get(trace.prompt) for trace in found)

    @property
    def _speedups(self) -> list[float | None]:
        return [
            ours.tokens_per_second / theirs.tokens_per_second if theirs.num_tokens else None
            for ours, theirs in zip(self.cell.whole, self.control.whole, strict=True)
        ]

    @property
    def _streams(self) -> list[Trace]:
        return _traces(self.cell.streamed)


def statistics_of(cells: Sequence[Cell]) -> list[VariantStatistics]:
    """Return every cell with its control and, if one stream was measured too, with that."""
    by_place = {(cell.scenario, cell.num_streams, cell.variant): cell for cell in cells}
    controls = {(c.scenario, c.num_streams): c for c in cells if c.variant.is_control}
    return [
        VariantStatistics(
            cell,
            controls[cell.scenario, cell.num_streams],
            by_place.get((cell.scenario, 1, cell.variant)) if cell.num_streams > 1 else None,
        )
        for cell in cells
    ]


def _traces(repetitions: Iterable[Repetition]) -> list[Trace]:
    return [trace for repetition in repetitions for trace in repetition.answers]


def _p50_p99(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    median, late = np.percentile(values, [50, 99])
    return float(median), float(late)
