"""What was observed: one answer, and all answers of a variant in one repetition.

Engine seconds are the engines' own, by their clocks; the rest of an answer's time is orchestration:
the loop, the hops between processes, tokenizing, and the client's connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple


class Arrival(NamedTuple):
    """A chunk of a stream: seconds since it was asked for, and the tokens that it brought."""

    seconds: float
    num_tokens: int


@dataclass(frozen=True)
class Trace:
    """One answer.

    seconds: from the request to the last token, as the client waited. arrivals: of its chunks;
    empty where the answer came whole.
    """

    num_tokens: int
    seconds: float
    engine_seconds: float
    num_rounds: int
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    arrivals: tuple[Arrival, ...] = ()
    prompt: int = 0  # its number in the scenario
    text: str = ""

    @property
    def seconds_to_first_token(self) -> float | None:
        """From the request to the first chunk with a token; None where nothing streamed."""
        first = [arrival for arrival in self.arrivals if arrival.num_tokens]
        return first[0].seconds if first else None

    @property
    def inter_token_seconds(self) -> list[float]:
        """The latency of every token behind the first chunk.

        Tokens that arrive together share the wait for them evenly.
        """
        latencies = []
        for before, chunk in pairwise(self._chunks):
            each = (chunk.seconds - before.seconds) / chunk.num_tokens
            latencies += [each] * chunk.num_tokens
        return latencies

    @property
    def gap_seconds(self) -> list[float]:
        """The waits between chunks: how long a reader sees nothing new."""
        return [after.seconds - before.seconds for before, after in pairwise(self._chunks)]

    @property
    def _chunks(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.num_tokens]


@dataclass(frozen=True)
class Repetition:
    """All answers of one variant in one repetition, all prompts together.

    elapsed_seconds: from the first request of any stream to the last token of any; where one stream
    asks, the sum of its answers' seconds, since other variants had their turns between them.
    """

    traces: Sequence[Trace]
    elapsed_seconds: float

    @classmethod
    def of_one_stream(cls, traces: Sequence[Trace]) -> Repetition:
        return cls(traces, sum(trace.seconds for trace in traces))

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.elapsed_seconds

    @property
    def efficiency(self) -> float | None:
        """The part of the answers' time in which an engine worked; None where none says so.

        It is the measured speedup over the ideal one; see `docs/benchmarks.md`.
        """
        return self.engine_seconds / self.seconds if self.engine_seconds else None

    @property
    def orchestration_seconds(self) -> float | None:
        """Seconds a round in which no engine worked."""
        if not (self.num_rounds and self.engine_seconds):
            return None
        return (self.seconds - self.engine_seconds) / self.num_rounds

    @property
    def acceptance_rate(self) -> float | None:
        drafted = self.num_draft_tokens
        return sum(t.num_accepted_tokens for t in self.traces) / drafted if drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.num_tokens / self.num_rounds if self.num_rounds else None

    @cached_property
    def seconds(self) -> float:
        """Of all answers together, whether they overlapped or not."""
        return sum(trace.seconds for trace in self.traces)

    @cached_property
    def engine_seconds(self) -> float:
        return sum(trace.engine_seconds for trace in self.traces)

    @cached_property
    def num_tokens(self) -> int:
        return sum(trace.num_tokens for trace in self.traces)

    @cached_property
    def num_rounds(self) -> int:
        """Of all answers; a plain step of the target counts as one."""
        return sum(trace.num_rounds for trace in self.traces)

    @cached_property
    def num_draft_tokens(self) -> int:
        return sum(trace.num_draft_tokens for trace in self.traces)
