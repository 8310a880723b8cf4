"""Metric updates for a sequence that has ended."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tandem.bls.drafters.registry import DRAFTERS, DrafterName
from tandem.bls.metrics import names
from tandem.bls.metrics.request_statistics import DraftStatistics, GuideStatistics, Statistics
from tandem.bls.metrics.timeline import Timeline
from tandem.contract.metric import Metric

Labels = frozenset[tuple[str, str]]
Key = tuple[Metric, Labels]


@dataclass
class MetricUpdates:
    """Increments of counters and observations of histograms, by name and labels."""

    counts: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    observations: list[tuple[Key, float]] = field(default_factory=list)

    def add(self, other: MetricUpdates) -> None:
        """Add all updates of ``other``."""
        for key, value in other.counts.items():
            self.counts[key] += value
        self.observations += other.observations

    def count(self, name: Metric, value: float, **labels: str) -> None:
        """Increment a counter. An increment of 0 makes the counter appear on /metrics."""
        self.counts[key_of(name, **labels)] += value

    def observe(self, name: Metric, value: float | None, **labels: str) -> None:
        """Add a value to a histogram. None is ignored."""
        if value is not None:
            self.observations.append((key_of(name, **labels), value))


def key_of(name: Metric, **labels: str) -> Key:
    return name, frozenset(labels.items())


def sequence_updates(
    drafter: DrafterName, statistics: Statistics, timeline: Timeline
) -> MetricUpdates:
    """Return the updates of a sequence whose request selected ``drafter``."""
    updates = MetricUpdates()
    for source, drafted in statistics.by_drafter.items():
        _count_drafts(updates, source, drafted)
    _count_time(updates, drafter, statistics, timeline)
    ahead, guided = statistics.ahead, statistics.guide or GuideStatistics(method="none")
    for name, value in (
        (names.OUTPUT_TOKENS, timeline.num_tokens),
        (names.AHEAD_CALLS, ahead.num_calls),
        (names.AHEAD_BRANCHES, ahead.num_branches),
        (names.AHEAD_WASTED_BRANCHES, ahead.num_wasted_branches),
        (names.AHEAD_SAVED_SECONDS, ahead.seconds_saved),
        (names.DRAFTER_FAILURES, statistics.num_drafter_failures),
        (names.UNVERIFIED_DRAFT_TOKENS, statistics.num_unverified_draft_tokens),
        (names.RECOMPUTED_TOKENS, statistics.num_recomputed_tokens),
        (names.FORCED_TOKENS, guided.num_forced_tokens),
        (names.REPAIRED_TOKENS, guided.num_repaired_tokens),
        (names.ILLEGAL_DRAFT_TOKENS, guided.num_illegal_draft_tokens),
    ):
        updates.count(name, value, drafter=drafter)
    for accepted, hits in enumerate(ahead.hits_by_accepted or [0]):
        updates.count(names.AHEAD_HITS, hits, drafter=drafter, accepted=str(accepted))
    return updates


def zero_updates(drafter: DrafterName) -> MetricUpdates:
    """Return increments of 0 for every counter of a drafter."""
    statistics = Statistics()
    if DRAFTERS[drafter].has_own_counters:
        statistics.by_drafter[drafter] = DraftStatistics()
    return sequence_updates(drafter, statistics, Timeline(arrival=0))


def zero_draft_updates(source: DrafterName) -> MetricUpdates:
    """Return increments of 0 for the counters of one source of drafts."""
    updates = MetricUpdates()
    _count_drafts(updates, source, DraftStatistics())
    return updates


def _count_drafts(updates: MetricUpdates, source: DrafterName, drafted: DraftStatistics) -> None:
    for name, value in (
        (names.DRAFTS, drafted.num_spec_steps),
        (names.DRAFT_TOKENS, drafted.num_draft_tokens),
        (names.ACCEPTED_TOKENS, drafted.num_accepted_draft_tokens),
    ):
        updates.count(name, value, drafter=source)
    for position, accepted in enumerate(_per_position(drafted.acceptance_histogram)):
        updates.count(
            names.ACCEPTED_TOKENS_PER_POS, accepted, drafter=source, position=str(position)
        )


def _count_time(
    updates: MetricUpdates, drafter: DrafterName, statistics: Statistics, timeline: Timeline
) -> None:
    """Count the seconds of decoding, in the engines and outside of them."""
    rounds = statistics.num_rounds
    engines = statistics.draft_seconds + statistics.target_seconds
    parts = {
        "draft": statistics.draft_seconds,
        "target": statistics.target_seconds,
        "orchestration": max(0.0, timeline.decoding_seconds - engines),
    }
    updates.count(names.ROUNDS, rounds, drafter=drafter)
    for part, seconds in parts.items():
        updates.count(names.ROUND_PART_SECONDS_TOTAL, seconds, drafter=drafter, part=part)
        mean = seconds / rounds if rounds else None
        updates.observe(names.ROUND_PART_SECONDS, mean, drafter=drafter, part=part)
    for name, value in (
        (names.TIME_TO_FIRST_TOKEN, timeline.time_to_first_token),
        (names.INTER_TOKEN_LATENCY, timeline.inter_token_latency),
        (names.ROUND_SECONDS, sum(parts.values()) / rounds if rounds else None),
    ):
        updates.observe(name, value, drafter=drafter)


def _per_position(histogram: list[int]) -> list[int]:
    """Return how often the draft token at each position was accepted.

    >>> _per_position([5, 3, 2])  # 5 rounds accepted none, 3 one, 2 two
    [5, 2]
    """
    return [sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)]
