"""Statistics of a sequence: its rounds, in total and per drafter, and the times of milestones."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from tandem.bls.drafters.registry import BASELINE, ENGINE, DrafterName


class Round(NamedTuple):
    """Statistics of one round, or the total of ``num_plain_tokens`` plain target steps.

    planned_tokens, stop_probability: parameters of the draft call. draft_seconds, target_seconds:
    durations by the engines' own clocks. num_branches: number of branches drafted for this round
    during the previous verification. drafted_ahead: whether one of these branches was the draft.
    seconds_saved: duration of the draft call that the branch replaced.
    """

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafter: DrafterName = BASELINE.name
    num_plain_tokens: int = 0
    planned_tokens: int = 0
    stop_probability: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    num_branches: int = 0
    drafted_ahead: bool = False
    seconds_saved: float = 0.0


@dataclass
class DraftStatistics:
    """Statistics of rounds with draft tokens, named as in vLLM's per-request statistics.

    ``num_spec_steps`` is the number of rounds; ``acceptance_histogram[i]`` is the number of rounds
    that accepted exactly i tokens.
    """

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)

    def count(self, round_: Round) -> None:
        """Count a round that had draft tokens."""
        self.num_spec_steps += 1
        self.num_draft_tokens += round_.num_draft_tokens
        self.num_accepted_draft_tokens += round_.num_accepted_tokens
        missing = round_.num_accepted_tokens + 1 - len(self.acceptance_histogram)
        self.acceptance_histogram.extend([0] * missing)
        self.acceptance_histogram[round_.num_accepted_tokens] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics under vLLM's keys."""
        return {
            "num_spec_steps": self.num_spec_steps,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_histogram": self.acceptance_histogram,
        }

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted; 0 if nothing was drafted."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens

    @property
    def mean_acceptance_length(self) -> float:
        """Average number of tokens emitted per round with drafts; 1 if there was no such round."""
        if not self.num_spec_steps:
            return 1.0
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps


@dataclass
class AheadStatistics:
    """Statistics of drafting ahead. A hit is a round whose draft was a branch.

    num_calls: number of rounds during which the draft engine drafted ahead.
    ``hits_by_accepted[j]``: number of hits after a round that accepted exactly j tokens.
    """

    num_calls: int = 0
    num_branches: int = 0
    hits_by_accepted: list[int] = field(default_factory=list)
    seconds_saved: float = 0.0

    @property
    def num_hits(self) -> int:
        """Number of rounds whose draft was a branch."""
        return sum(self.hits_by_accepted)

    @property
    def num_wasted_branches(self) -> int:
        """Number of branches that no round used."""
        return self.num_branches - self.num_hits

    def count(self, round_: Round, num_accepted_before: int) -> None:
        """Count a round. num_accepted_before: number of tokens that the previous round accepted."""
        self.num_branches += round_.num_branches
        if round_.drafted_ahead:
            self.seconds_saved += round_.seconds_saved
            missing = num_accepted_before + 1 - len(self.hits_by_accepted)
            self.hits_by_accepted.extend([0] * missing)
            self.hits_by_accepted[num_accepted_before] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics for clients."""
        counted = {"num_hits": self.num_hits, "num_wasted_branches": self.num_wasted_branches}
        return asdict(self) | counted


@dataclass
class GuideStatistics:
    """Statistics of an answer with a guide.

    method: how the guide was enforced (see ``bls.guidance``). warnings: parts of the guide
    that aren't enforced. num_forced_tokens: number of tokens emitted without a call, because the
    guide allowed no others. num_repaired_tokens: number of tokens that were sampled again because
    the first sample was disallowed. num_illegal_draft_tokens: number of draft tokens that were
    dropped unverified: disallowed ones and all that followed them.
    """

    method: str
    warnings: tuple[str, ...] = ()
    num_forced_tokens: int = 0
    num_repaired_tokens: int = 0
    num_illegal_draft_tokens: int = 0


class Totals(NamedTuple):
    """A snapshot of a request's statistics."""

    num_rounds: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    draft_acceptance_rate: float


@dataclass
class Statistics(DraftStatistics):
    """Statistics of one request, in total and per drafter."""

    num_rounds: int = 0
    num_drafter_failures: int = 0
    num_unverified_draft_tokens: int = 0  # lower bound
    num_recomputed_tokens: int = 0
    num_cached_prompt_tokens: int | None = None  # in whole KV blocks; None: not reported
    stop_string: str | None = None  # the stop string that ended the answer
    draft_seconds: float = 0.0  # by the draft engine's clock
    target_seconds: float = 0.0  # by the target's clock
    by_drafter: defaultdict[DrafterName, DraftStatistics] = field(
        default_factory=lambda: defaultdict(DraftStatistics)
    )
    ahead: AheadStatistics = field(default_factory=AheadStatistics)
    guide: GuideStatistics | None = None
    rounds: list[Round] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics in total, per drafter, and per round."""
        by_drafter = {name: earned.as_dict() for name, earned in self.by_drafter.items()}
        return {
            **super().as_dict(),
            "num_rounds": self.num_rounds,
            "num_drafter_failures": self.num_drafter_failures,
            "num_unverified_draft_tokens": self.num_unverified_draft_tokens,
            "num_cached_prompt_tokens": self.num_cached_prompt_tokens,
            "stop_string": self.stop_string,
            "draft_seconds": self.draft_seconds,
            "target_seconds": self.target_seconds,
            "by_drafter": by_drafter,
            "draft_ahead": self.ahead.as_dict(),
            "guide": None if self.guide is None else asdict(self.guide),
            "rounds": [round_._asdict() for round_ in self.rounds],
        }

    def add_engine_drafts(self, num_emitted: int, num_draft_tokens: int, num_accepted: int) -> None:
        """Count one call to an engine that drafts by itself.

        num_emitted: number of tokens in its result, including an end of sequence that it dropped.

        The number of rounds follows from the counts, because each round emits one token more than
        it accepts. The engine doesn't report single rounds, so there is no histogram. Implausible
        counts are clipped, because counters must not decrease. The number of accepted tokens can't
        exceed the number of drafted or emitted tokens, and a call has at least one round.
        """
        drafted = max(0, num_draft_tokens)
        accepted = min(max(0, num_accepted), drafted, num_emitted)
        rounds = max(1, num_emitted - accepted)
        for counted in (self, self.by_drafter[ENGINE.name]):
            counted.num_spec_steps += rounds
            counted.num_draft_tokens += drafted
            counted.num_accepted_draft_tokens += accepted
        self.num_rounds += rounds

    @property
    def totals(self) -> Totals:
        """Return a snapshot of the statistics so far."""
        return Totals(
            self.num_rounds,
            self.num_draft_tokens,
            self.num_accepted_draft_tokens,
            self.draft_acceptance_rate,
        )

    def add(self, round_: Round) -> None:
        """Count one round."""
        self.ahead.count(round_, self.rounds[-1].num_accepted_tokens if self.rounds else 0)
        self.rounds.append(round_)
        self.num_rounds += round_.num_plain_tokens or 1
        self.draft_seconds += round_.draft_seconds
        self.target_seconds += round_.target_seconds
        if round_.num_draft_tokens:
            self.count(round_)
            self.by_drafter[round_.drafter].count(round_)


@dataclass
class Timeline:
    """Times of a sequence's milestones, in ns of the wall clock; 0 if not reached.

    last_delivery: time of the last tokens, or of an end without tokens. num_first_tokens: number of
    tokens in the first delivery.
    """

    arrival: int
    first_scheduled: int = 0
    first_token: int = 0
    last_token: int = 0
    last_delivery: int = 0
    num_first_tokens: int = 0
    num_tokens: int = 0

    def mark_scheduled(self) -> None:
        self.first_scheduled = time.time_ns()

    def record_delivery(self, num_tokens: int) -> None:
        """Record that ``num_tokens`` tokens became final now."""
        self.last_delivery = time.time_ns()
        if not num_tokens:
            return
        self.last_token = self.last_delivery
        self.num_tokens += num_tokens
        if not self.first_token:
            self.first_token, self.num_first_tokens = self.last_token, num_tokens

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token, including queueing; None without tokens."""
        return _seconds(self.arrival, self.first_token) if self.num_tokens else None

    @property
    def inter_token_latency(self) -> float | None:
        """Seconds per token after the first delivery; None if no tokens followed it.

        The tokens of the first delivery don't count: the time to first token covers them.
        """
        later_tokens = self.num_tokens - self.num_first_tokens
        if not later_tokens:
            return None
        return _seconds(self.first_token, self.last_token) / later_tokens

    @property
    def decoding_seconds(self) -> float:
        """Seconds from the start of decoding to the last delivery."""
        return _seconds(self.first_scheduled, self.last_delivery) if self.last_delivery else 0.0


def _seconds(start: int, end: int) -> float:
    """Return the seconds between two times in ns; 0 if the wall clock was set back."""
    return max(0, end - start) / 1e9
