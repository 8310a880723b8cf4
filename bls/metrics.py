"""The loop's metrics, and their updates for a sequence that has ended.

Speculation metrics use vLLM's names without its prefix.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tandem.bls.drafters.registry import DRAFTERS, DrafterName
from tandem.bls.statistics import DraftStatistics, GuideStatistics, Statistics, Timeline
from tandem.contract.metric import Metric, MetricList


def _decades(first: int, last: int, steps: tuple[float, ...]) -> tuple[float, ...]:
    """Return histogram bounds: each step times 10 to every power from ``first`` to ``last``.

    Steps (1, 2, 5) from -1 to 0 give 0.1, 0.2, 0.5, 1, 2, 5.
    """
    return tuple(float(f"{step}e{exp}") for exp in range(first, last + 1) for step in steps)


FINE, COARSE = (1, 1.5, 2, 3, 5, 7), (1, 2, 5)

METRICS = MetricList()

DRAFTS = METRICS.counter("spec_decode_num_drafts_total", "Rounds with draft tokens")
DRAFT_TOKENS = METRICS.counter("spec_decode_num_draft_tokens_total", "Draft tokens proposed")
ACCEPTED_TOKENS = METRICS.counter("spec_decode_num_accepted_tokens_total", "Draft tokens accepted")
ACCEPTED_TOKENS_PER_POS = METRICS.counter(
    "spec_decode_num_accepted_tokens_per_pos_total",
    "Draft tokens accepted, by position in the draft",
)
ROUNDS = METRICS.counter(
    "tandem_rounds_total", "Rounds; a token decoded without a draft counts as one"
)
OUTPUT_TOKENS = METRICS.counter("tandem_output_tokens_total", "Output tokens of all requests")
ROUND_PART_SECONDS_TOTAL = METRICS.counter(
    "tandem_round_part_seconds_total",
    "Seconds of decoding by part: draft and target as the engines report them, and orchestration",
)
AHEAD_CALLS = METRICS.counter(
    "tandem_draft_ahead_calls_total", "Verifications during which the draft engine drafted ahead"
)
AHEAD_BRANCHES = METRICS.counter(
    "tandem_draft_ahead_branches_total", "Branches drafted ahead, one per possible outcome"
)
AHEAD_WASTED_BRANCHES = METRICS.counter(
    "tandem_draft_ahead_wasted_branches_total", "Branches drafted ahead that no round used"
)
AHEAD_HITS = METRICS.counter(
    "tandem_draft_ahead_hits_total",
    "Rounds whose draft came from a branch, by number of tokens accepted in the previous round",
)
AHEAD_SAVED_SECONDS = METRICS.counter(
    "tandem_draft_ahead_saved_seconds_total", "Seconds of draft calls saved by drafting ahead"
)
DRAFTER_FAILURES = METRICS.counter(
    "tandem_drafter_failures_total",
    "Draft calls that failed or were rejected, and other failures of custom drafters",
)
UNVERIFIED_DRAFT_TOKENS = METRICS.counter(
    "tandem_unverified_draft_tokens_total",
    "Draft tokens that the target dropped without verifying them (a lower bound)",
)
GUIDES_REJECTED = METRICS.counter(
    "tandem_guides_refused_total",
    "Guides that couldn't be compiled, by unsupported JSON schema keyword",
)
FORCED_TOKENS = METRICS.counter(
    "tandem_forced_tokens_total",
    "Output tokens for which the guide allowed no alternative",
)
REPAIRED_TOKENS = METRICS.counter(
    "tandem_repaired_tokens_total",
    "Tokens that a target without masks sampled again to fit a guide",
)
ILLEGAL_DRAFT_TOKENS = METRICS.counter(
    "tandem_illegal_draft_tokens_total",
    "Draft tokens dropped without verification: the first that a guide forbids, and all after it",
)
RECOMPUTED_TOKENS = METRICS.counter(
    "tandem_recomputed_tokens_total", "Context tokens computed again after an eviction"
)

REQUESTS_RUNNING = METRICS.gauge("tandem_requests_running", "Sequences that decode")
REQUESTS_WAITING = METRICS.gauge(
    "tandem_requests_waiting", "Sequences that wait to start or to go on"
)
KV_RESERVED = METRICS.gauge(
    "tandem_kv_reserved_ratio",
    "Share of the target's KV cache that running sequences reserve. At 1, other sequences wait",
)
LOOKUP_POOL_TOKENS = METRICS.gauge(
    "tandem_lookup_pool_tokens", "Tokens of earlier outputs in lookup pools"
)
OLDEST_DELIVERY = METRICS.gauge(
    "tandem_oldest_untaken_response_seconds",
    "Age of the oldest response that Triton hasn't taken",
)
ABANDONED_CALLS = METRICS.gauge(
    "tandem_abandoned_calls",
    "Unanswered engine calls past their timeout; an engine with 32 of them gets no more calls",
)

# An observation is a call to the server process (50 us), so a sequence observes only its mean.
TIME_TO_FIRST_TOKEN = METRICS.histogram(
    "tandem_time_to_first_token_seconds",
    "Seconds from a request's arrival to a sequence's first token, including queueing",
    _decades(-3, 1, FINE),
)
INTER_TOKEN_LATENCY = METRICS.histogram(
    "tandem_inter_token_latency_seconds",
    "Mean time per token of a sequence, after its first delivery",
    _decades(-4, 0, FINE),
)
ROUND_SECONDS = METRICS.histogram(
    "tandem_round_seconds",
    "Mean time per round of a sequence",
    _decades(-4, 1, COARSE),
)
ROUND_PART_SECONDS = METRICS.histogram(
    "tandem_round_part_seconds",
    "Mean time per round of a sequence by part: draft, target, orchestration",
    _decades(-4, 1, COARSE),
)

# Metrics of every model with a watcher, not only of the loop. Cancellations, deadlines and metrics
# depend on the watcher.
WATCHER = MetricList()
HEARTBEAT = WATCHER.gauge(
    "tandem_watcher_last_look_timestamp_seconds",
    "Unix time at which the thread that checks the model's requests last ran",
)


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
        (OUTPUT_TOKENS, timeline.num_tokens),
        (AHEAD_CALLS, ahead.num_calls),
        (AHEAD_BRANCHES, ahead.num_branches),
        (AHEAD_WASTED_BRANCHES, ahead.num_wasted_branches),
        (AHEAD_SAVED_SECONDS, ahead.seconds_saved),
        (DRAFTER_FAILURES, statistics.num_drafter_failures),
        (UNVERIFIED_DRAFT_TOKENS, statistics.num_unverified_draft_tokens),
        (RECOMPUTED_TOKENS, statistics.num_recomputed_tokens),
        (FORCED_TOKENS, guided.num_forced_tokens),
        (REPAIRED_TOKENS, guided.num_repaired_tokens),
        (ILLEGAL_DRAFT_TOKENS, guided.num_illegal_draft_tokens),
    ):
        updates.count(name, value, drafter=drafter)
    for accepted, hits in enumerate(ahead.hits_by_accepted or [0]):
        updates.count(AHEAD_HITS, hits, drafter=drafter, accepted=str(accepted))
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
    """Count the seconds of decoding, in the engines and outside of them."""
    rounds = statistics.num_rounds
    engines = statistics.draft_seconds + statistics.target_seconds
    parts = {
        "draft": statistics.draft_seconds,
        "target": statistics.target_seconds,
        "orchestration": max(0.0, timeline.decoding_seconds - engines),
    }
    updates.count(ROUNDS, rounds, drafter=drafter)
    for part, seconds in parts.items():
        updates.count(ROUND_PART_SECONDS_TOTAL, seconds, drafter=drafter, part=part)
        mean = seconds / rounds if rounds else None
        updates.observe(ROUND_PART_SECONDS, mean, drafter=drafter, part=part)
    for name, value in (
        (TIME_TO_FIRST_TOKEN, timeline.time_to_first_token),
        (INTER_TOKEN_LATENCY, timeline.inter_token_latency),
        (ROUND_SECONDS, sum(parts.values()) / rounds if rounds else None),
    ):
        updates.observe(name, value, drafter=drafter)


def _per_position(histogram: list[int]) -> list[int]:
    """Return how often the draft token at each position was accepted.

    >>> _per_position([5, 3, 2])  # 5 rounds accepted none, 3 one, 2 two
    [5, 2]
    """
    return [sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)]
