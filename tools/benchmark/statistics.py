"""Medians over repetitions, and their spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tandem.tools.benchmark.variant import Variant
from tandem.tools.client.answer import Answer, Answers


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


@dataclass(eq=False)
class Measurement:
    """The results of one variant in one scenario with one number of concurrent requests.

    Repetition i of every measurement of a scenario ran under the same conditions, so they can be
    compared. Times are in seconds; None means not measured or undefined.

    baseline: the target alone with the same scenario and concurrency; None if this is the baseline.
    alone: the same variant without concurrent requests. whole: repetitions whose answers arrived in
    one response. streamed: repetitions with streamed answers.
    """

    scenario: str
    concurrency: int
    variant: Variant
    baseline: Measurement | None = None
    alone: Measurement | None = None
    whole: list[Answers] = field(default_factory=list)
    streamed: list[Answers] = field(default_factory=list)

    def spread(self, name: str) -> Spread | None:
        """Return the spread of a property of `Answers` over all repetitions."""
        return Spread.of(getattr(repetition, name) for repetition in self.whole)

    @property
    def speedup(self) -> Spread | None:
        """Tokens per second relative to the baseline in the same repetition."""
        return Spread.of(self._relative_to(self.baseline or self))

    @property
    def ideal_speedup(self) -> Spread | None:
        """The speedup if an answer took only the engines' time.

        The baseline keeps its own overhead, so a slow baseline can't make the loop look better.
        """
        speedups = self._relative_to(self.baseline or self)
        pairs = zip(speedups, [r.efficiency for r in self.whole], strict=True)
        return Spread.of(s / e if s and e else None for s, e in pairs)

    @property
    def scaling(self) -> Spread | None:
        """Tokens per second relative to one stream in the same repetition."""
        return Spread.of(self._relative_to(self.alone)) if self.alone else None

    @property
    def seconds_to_first_token(self) -> Spread | None:
        return Spread.of(answer.seconds_to_first_token for answer in self._streamed)

    @property
    def inter_token_seconds(self) -> Latency | None:
        """The time per token, over all streamed answers."""
        return Latency.of([s for answer in self._streamed for s in answer.inter_token_seconds])

    @property
    def gap_seconds(self) -> Latency | None:
        """The time between chunks, over all streamed answers."""
        return Latency.of([s for answer in self._streamed for s in answer.gap_seconds])

    @property
    def num_different(self) -> int:
        """Number of answers that differ from the baseline's first answer to the same prompt."""
        wanted: dict[int, str] = {}
        for answer in _answers((self.baseline or self).whole):
            wanted.setdefault(answer.prompt, answer.text)
        found = [*_answers(self.whole), *self._streamed]
        return sum(answer.text != wanted.get(answer.prompt) for answer in found)

    def _relative_to(self, other: Measurement) -> list[float | None]:
        """Return the ratio of tokens per second in each repetition."""
        return [
            ours.tokens_per_second / theirs.tokens_per_second if theirs.num_tokens else None
            for ours, theirs in zip(self.whole, other.whole, strict=True)
        ]

    @property
    def _streamed(self) -> list[Answer]:
        return _answers(self.streamed)


def _answers(repetitions: Iterable[Answers]) -> list[Answer]:
    return [answer for repetition in repetitions for answer in repetition.answers]
