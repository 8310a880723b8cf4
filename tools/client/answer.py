"""Answers, collected from chunks, with their counts, times and rates.

The engines measure the engine seconds themselves. The rest of an answer's time is orchestration
overhead: the loop, messages between processes, tokenizing, and the client's connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple


class AnswerTotals(NamedTuple):
    """Counts since the start of a request."""

    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class AnswerChunk(NamedTuple):
    """Part of an answer.

    finish_reason, statistics: None unless this is the last chunk. seconds: time since the request
    was sent. kinds, text_lengths: one number per token, empty unless requested; see
    `contract.entry`.
    """

    text: str
    tokens: list[int]
    totals: AnswerTotals
    finish_reason: str | None
    seconds: float
    statistics: Mapping[str, Any] | None = None
    kinds: Sequence[int] = ()
    text_lengths: Sequence[int] = ()


@dataclass
class Answer:
    """One answer, collected from its chunks.

    arrivals: for each chunk with tokens, the seconds since the request and the number of tokens.
    prompt: number of the prompt in its scenario.
    """

    text: str = ""
    num_tokens: int = 0
    totals: AnswerTotals = field(default_factory=AnswerTotals)
    finish_reason: str | None = None
    seconds: float = 0.0
    statistics: Mapping[str, Any] | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    prompt: int = 0

    def add(self, chunk: AnswerChunk) -> None:
        self.text += chunk.text
        self.num_tokens += len(chunk.tokens)
        self.totals = chunk.totals
        self.finish_reason = chunk.finish_reason
        self.seconds = chunk.seconds
        self.statistics = chunk.statistics
        if chunk.tokens:
            self.arrivals.append((chunk.seconds, len(chunk.tokens)))

    @property
    def engine_seconds(self) -> float:
        statistics = self.statistics or {}
        return float(statistics.get("draft_seconds", 0) + statistics.get("target_seconds", 0))

    @property
    def seconds_to_first_token(self) -> float | None:
        return self.arrivals[0][0] if self.arrivals else None

    @property
    def gap_seconds(self) -> list[float]:
        """Return the seconds between successive chunks that contain tokens."""
        return [after - before for (before, _), (after, _) in pairwise(self.arrivals)]

    @property
    def inter_token_seconds(self) -> list[float]:
        """Return the latency of every token after the first chunk.

        The time before a chunk is divided evenly among its tokens.
        """
        latencies = []
        for gap, (_, num_tokens) in zip(self.gap_seconds, self.arrivals[1:], strict=True):
            latencies += [gap / num_tokens] * num_tokens
        return latencies


@dataclass(frozen=True)
class Answers:
    """Several answers, with totals and rates over all of them.

    A rate is None if its denominator is zero, for example if nothing was drafted.

    concurrent_seconds: for concurrent requests, the time from the first request to the last token.
    None: the requests ran one at a time, so the answers' durations are added.
    """

    answers: Sequence[Answer]
    concurrent_seconds: float | None = None

    @cached_property
    def num_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.answers)

    @cached_property
    def seconds(self) -> float:
        """Return the sum of the answers' durations; concurrent answers count in full."""
        return sum(answer.seconds for answer in self.answers)

    @property
    def elapsed_seconds(self) -> float:
        return self.seconds if self.concurrent_seconds is None else self.concurrent_seconds

    @cached_property
    def engine_seconds(self) -> float:
        return sum(answer.engine_seconds for answer in self.answers)

    @cached_property
    def totals(self) -> AnswerTotals:
        return AnswerTotals(
            *map(sum, zip(*(answer.totals for answer in self.answers), strict=True))
        )

    @property
    def tokens_per_second(self) -> float:
        """Return the total rate, which includes the wait for the first tokens."""
        return self.num_tokens / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        drafted = self.totals.num_draft_tokens
        return self.totals.num_accepted_tokens / drafted if drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.num_tokens / self.totals.num_rounds if self.totals.num_rounds else None

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
