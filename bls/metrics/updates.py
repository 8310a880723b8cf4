"""What an ended sequence adds to the metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tandem.bls.drafters.registry import DRAFTERS, DrafterName
from tandem.bls.metrics.names import (
    ACCEPTED_TOKENS,
    ACCEPTED_TOKENS_PER_POS,
    AHEAD_BRANCHES,
    AHEAD_CALLS,
    AHEAD_HITS,
    AHEAD_SAVED_SECONDS,
    AHEAD_WASTED_BRANCHES,
    DRAFT_TOKENS,
    DRAFTER_FAILURES,
    DRAFTS,
    FORCED_TOKENS,
    ILLEGAL_DRAFT_TOKENS,
    INTER_TOKEN_LATENCY,
    OUTPUT_TOKENS,
    RECOMPUTED_TOKENS,
    REPAIRED_TOKENS,
    ROUND_PART_SECONDS,
    ROUND_PART_SECONDS_TOTAL,
    ROUND_SECONDS,
    ROUNDS,
    TIME_TO_FIRST_TOKEN,
    UNVERIFIED_DRAFT_TOKENS,
)
from tandem.bls.metrics.request_statistics import Drafted, Statistics
from tandem.bls.metrics.timeline import Timeline
from tandem.contract.metric import Metric

Labels = frozenset[tuple[str, str]]
Key = tuple[Metric, Labels]


@dataclass
class MetricUpdates:
    """What counters grow by, and what histograms observe, by name and labels."""

    counts: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    observations: list[tuple[Key, float]] = field(default_factory=list)

    def add(self, other: MetricUpdates) -> None:
        """Take over what ``other`` holds."""
        for key, value in other.counts.items():
            self.counts[key] += value
        self.observations += other.observations

    def count(self, name: Metric, value: float, **labels: str) -> None:
        """Add to a counter. Adding 0 makes it appear on /metrics."""
        self.counts[key_of(name, **labels)] += value

    def observe(self, name: Metric, value: float | None, **labels: str) -> None:
        """Observe a value where there is one."""
        if value is not None:
            self.observations.append((key_of(name, **labels), value))


def key_of(name: Metric, **labels: str) -> Key:
    """Return the key of a metric."""
    return name, frozenset(labels.items())


def updates_of(drafter: DrafterName, statistics: Statistics, timeline: Timeline) -> MetricUpdates:
    """Return what a sequence did that asked for ``drafter``."""
    updates = MetricUpdates()
    for source, drafted in statistics.by_drafter.items():
        _count_drafts(updates, source, drafted)
    _count_time(updates, drafter, statistics, timeline)
    for name, value in (
        (OUTPUT_TOKENS, timeline.num_tokens),
        (AHEAD_CALLS, statistics.ahead.num_calls),
        (AHEAD_BRANCHES, statistics.ahead.num_branches),
        (AHEAD_WASTED_BRANCHES, statistics.ahead.num_wasted_branches),
        (AHEAD_SAVED_SECONDS, statistics.ahead.seconds_saved),
        (DRAFTER_FAILURES, statistics.num_drafter_failures),
        (UNVERIFIED_DRAFT_TOKENS, statistics.num_unverified_draft_tokens),
        (RECOMPUTED_TOKENS, statistics.num_recomputed_tokens),
    ):
        updates.count(name, value, drafter=drafter)
    guided = statistics.guide
    for name, value in (
        (FORCED_TOKENS, guided.num_forced_tokens if guided else 0),
        (REPAIRED_TOKENS, guided.num_repaired_tokens if guided else 0),
        (ILLEGAL_DRAFT_TOKENS, guided.num_illegal_draft_tokens if guided else 0),
    ):
        updates.count(name, value, drafter=drafter)
    for accepted, hits in enumerate(statistics.ahead.hits_by_accepted or [0]):
        updates.count(AHEAD_HITS, hits, drafter=drafter, accepted=str(accepted))
    return updates


def zeros(drafter: DrafterName) -> MetricUpdates:
    """Return updates that name every counter of a drafter and count nothing."""
    statistics = Statistics()
    if DRAFTERS[drafter].proposes:
        statistics.by_drafter[drafter] = Drafted()
    return updates_of(drafter, statistics, Timeline(arrival=0))


def zero_drafts(source: DrafterName) -> MetricUpdates:
    """Return updates that name the counters of a source of drafts and count nothing."""
    updates = MetricUpdates()
    _count_drafts(updates, source, Drafted())
    return updates


def _count_drafts(updates: MetricUpdates, source: DrafterName, drafted: Drafted) -> None:
    for name, value in (
        (DRAFTS, drafted.num_spec_steps),
        (DRAFT_TOKENS, drafted.num_draft_tokens),
        (ACCEPTED_TOKENS, drafted.num_accepted_draft_tokens),
    ):
        updates.count(name, value, drafter=source)
    for position, accepted in enumerate(_per_position(drafted.acceptance_histogram)):
        updates.count(ACCEPTED_TOKENS_PER_POS, accepted, drafter=source, position=str(position))


def _count_time(
    updates: MetricUpdates, drafter: DrafterName, statistics: Statistics, timeline: Timeline
) -> None:
    rounds, parts = statistics.num_rounds, dict(_parts(statistics, timeline))
    updates.count(ROUNDS, rounds, drafter=drafter)
    for part, seconds in parts.items():
        updates.count(ROUND_PART_SECONDS_TOTAL, seconds, drafter=drafter, part=part)
    for name, value in (
        (TIME_TO_FIRST_TOKEN, timeline.time_to_first_token),
        (INTER_TOKEN_LATENCY, timeline.inter_token_latency),
        (ROUND_SECONDS, sum(parts.values()) / rounds if rounds else None),
    ):
        updates.observe(name, value, drafter=drafter)
    for part, seconds in parts.items():
        mean = seconds / rounds if rounds else None
        updates.observe(ROUND_PART_SECONDS, mean, drafter=drafter, part=part)


def _parts(statistics: Statistics, timeline: Timeline) -> Iterator[tuple[str, float]]:
    """Split the seconds of decoding: the engines' own, and the rest."""
    engines = statistics.draft_seconds + statistics.target_seconds
    yield "draft", statistics.draft_seconds
    yield "target", statistics.target_seconds
    yield "orchestration", max(0.0, timeline.decoding_seconds - engines)


def _per_position(histogram: list[int]) -> list[int]:
    """How often the draft token at each position was accepted.

    >>> _per_position([5, 3, 2])  # 5 rounds accepted none, 3 one, 2 two
    [5, 2]
    """
    return [sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)]
