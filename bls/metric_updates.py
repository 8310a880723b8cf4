"""What an ended sequence adds to the metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tandem.bls.settings import DrafterName
from tandem.bls.statistics import Drafted, Statistics
from tandem.bls.timeline import Timeline

Labels = frozenset[tuple[str, str]]
Key = tuple[str, Labels]


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

    def count(self, name: str, value: float, **labels: str) -> None:
        """Let a counter grow; by 0, it is there at least."""
        self.counts[key_of(name, **labels)] += value

    def observe(self, name: str, value: float | None, **labels: str) -> None:
        """Observe a value where there is one."""
        if value is not None:
            self.observations.append((key_of(name, **labels), value))


def key_of(name: str, **labels: str) -> Key:
    """Return the key of a metric."""
    return name, frozenset(labels.items())


def updates_of(drafter: DrafterName, statistics: Statistics, timeline: Timeline) -> MetricUpdates:
    """Return what a sequence did that asked for ``drafter``."""
    figures = MetricUpdates()
    for source, drafted in statistics.by_drafter.items():
        _count_drafts(figures, source, drafted)
    _count_time(figures, drafter, statistics, timeline)
    for name, value in (
        ("tandem_output_tokens_total", timeline.num_tokens),
        ("tandem_draft_ahead_calls_total", statistics.ahead.num_calls),
        ("tandem_draft_ahead_branches_total", statistics.ahead.num_branches),
        ("tandem_draft_ahead_wasted_branches_total", statistics.ahead.num_wasted_branches),
        ("tandem_draft_ahead_saved_seconds_total", statistics.ahead.seconds_saved),
        ("tandem_drafter_failures_total", statistics.num_drafter_failures),
        ("tandem_unverified_draft_tokens_total", statistics.num_unverified_draft_tokens),
        ("tandem_recomputed_tokens_total", statistics.num_recomputed_tokens),
    ):
        figures.count(name, value, drafter=drafter)
    for accepted, hits in enumerate(statistics.ahead.hits_by_accepted):
        name = "tandem_draft_ahead_hits_total"
        figures.count(name, hits, drafter=drafter, accepted=str(accepted))
    return figures


def zeros(drafter: DrafterName) -> MetricUpdates:
    """Return figures that name every counter of a drafter and count nothing."""
    chooses = drafter in ("hybrid", "none")  # of others, or nobody: it proposes nothing itself
    statistics = Statistics()
    if not chooses:
        statistics.by_drafter[drafter] = Drafted()
    return updates_of(drafter, statistics, Timeline(arrival=0))


def _count_drafts(figures: MetricUpdates, source: DrafterName, drafted: Drafted) -> None:
    for name, value in (
        ("spec_decode_num_drafts_total", drafted.num_spec_steps),
        ("spec_decode_num_draft_tokens_total", drafted.num_draft_tokens),
        ("spec_decode_num_accepted_tokens_total", drafted.num_accepted_draft_tokens),
    ):
        figures.count(name, value, drafter=source)
    for position, accepted in enumerate(_per_position(drafted.acceptance_histogram)):
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        figures.count(name, accepted, drafter=source, position=str(position))


def _count_time(
    figures: MetricUpdates, drafter: DrafterName, statistics: Statistics, timeline: Timeline
) -> None:
    rounds, parts = statistics.num_rounds, dict(_parts(statistics, timeline))
    figures.count("tandem_rounds_total", rounds, drafter=drafter)
    for part, seconds in parts.items():
        figures.count("tandem_round_part_seconds_total", seconds, drafter=drafter, part=part)
    for name, value in (
        ("tandem_time_to_first_token_seconds", timeline.time_to_first_token),
        ("tandem_inter_token_latency_seconds", timeline.inter_token_latency),
        ("tandem_round_seconds", sum(parts.values()) / rounds if rounds else None),
    ):
        figures.observe(name, value, drafter=drafter)
    for part, seconds in parts.items():
        mean = seconds / rounds if rounds else None
        figures.observe("tandem_round_part_seconds", mean, drafter=drafter, part=part)


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
