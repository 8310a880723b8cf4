"""The measurements of one answer, and of all answers of a variant in one repetition.

The engines measure the engine seconds themselves. The rest of an answer's time is orchestration
overhead: the loop, messages between processes, tokenizing, and the client's connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from tandem.tools.client.client import Answer, Answers


class Arrival(NamedTuple):
    """A chunk of a stream: its time in seconds since the request, and its number of tokens."""

    seconds: float
    num_tokens: int


@dataclass
class Trace(Answer):
    """One answer and its measurements.

    arrivals: the chunks; empty if the answer wasn't streamed. prompt: the prompt's number in the
    scenario.
    """

    arrivals: tuple[Arrival, ...] = ()
    prompt: int = 0

    @property
    def engine_seconds(self) -> float:
        statistics = self.statistics or {}
        return float(statistics.get("draft_seconds", 0) + statistics.get("target_seconds", 0))

    @property
    def inter_token_seconds(self) -> list[float]:
        """Return the latency of every token after the first chunk.

        The time before a chunk is divided evenly among its tokens.
        """
        latencies = []
        for gap, chunk in zip(self.gap_seconds, self._chunks[1:], strict=True):
            latencies += [gap / chunk.num_tokens] * chunk.num_tokens
        return latencies

    @property
    def gap_seconds(self) -> list[float]:
        """Return the seconds between successive chunks that contain tokens."""
        return [after.seconds - before.seconds for before, after in pairwise(self._chunks)]

    @property
    def _chunks(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.num_tokens]


@dataclass(frozen=True)
class Repetition(Answers):
    """All answers of one variant in one repetition, over all prompts.

    elapsed_seconds: time from the first request to the last token of all streams. For a single
    stream it is the sum of the answers' durations, because other variants run between them.
    """

    answers: Sequence[Trace]
    elapsed_seconds: float

    @classmethod
    def of_one_stream(cls, answers: Sequence[Trace]) -> Repetition:
        return cls(answers, sum(answer.seconds for answer in answers))

    @property
    def tokens_per_second(self) -> float:
        """Return the total rate of all streams over the elapsed time."""
        return self.num_tokens / self.elapsed_seconds

    @property
    def efficiency(self) -> float | None:
        """Return engine time / answer time, or None if the engines report no times.

        This is the measured speedup / the ideal speedup; see `docs/project/benchmarks.md`.
        """
        return self.engine_seconds / self.seconds if self.engine_seconds else None

    @property
    def orchestration_seconds(self) -> float | None:
        """Return the seconds per round during which no engine worked."""
        rounds = self.totals.num_rounds
        if not (rounds and self.engine_seconds):
            return None
        return (self.seconds - self.engine_seconds) / rounds

    @cached_property
    def engine_seconds(self) -> float:
        return sum(answer.engine_seconds for answer in self.answers)
