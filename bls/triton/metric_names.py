"""What is on ``/metrics``: names, help texts, buckets. Speculation's are vLLM's, unprefixed."""

from __future__ import annotations

from typing import NamedTuple

COUNTERS = {
    "spec_decode_num_drafts_total": "Rounds with draft tokens",
    "spec_decode_num_draft_tokens_total": "Draft tokens proposed",
    "spec_decode_num_accepted_tokens_total": "Draft tokens accepted",
    "spec_decode_num_accepted_tokens_per_pos_total": "Draft tokens accepted, by their position",
    "tandem_rounds_total": "Rounds; a token that the target decoded alone is one",
    "tandem_output_tokens_total": "Tokens of all answers",
    "tandem_round_part_seconds_total": (
        "Seconds of decoding by part: draft and target by the engines' own clocks; orchestration "
        "is the rest, from a sequence's start to its last token"
    ),
    "tandem_draft_ahead_calls_total": "Rounds during whose verification the next was drafted",
    "tandem_draft_ahead_branches_total": "Branches drafted, each behind one outcome of a round",
    "tandem_draft_ahead_wasted_branches_total": "Branches that no round used",
    "tandem_draft_ahead_hits_total": (
        "Rounds whose draft was a branch, by the tokens that the round before accepted"
    ),
    "tandem_draft_ahead_saved_seconds_total": "Seconds that draft calls instead would have taken",
    "tandem_drafter_failures_total": "Draft calls that failed",
    "tandem_unverified_draft_tokens_total": (
        "Draft tokens that the target dropped without verifying them; at least so many"
    ),
    "tandem_recomputed_tokens_total": "Context tokens computed again after an eviction",
}
GAUGES = {
    "tandem_requests_running": "Sequences decoding now",
    "tandem_requests_waiting": "Sequences waiting for KV blocks",
    "tandem_kv_reserved_ratio": "Share of the KV cache that running sequences may come to need",
    "tandem_abandoned_calls": "Engine calls abandoned without an answer",
}
# Of every model that has a watcher: cancellations, deadlines and these figures hang on it.
HEARTBEAT = (
    "tandem_watcher_last_look_timestamp_seconds",
    "When the thread that watches over the model's requests was last at work, in Unix time",
)


class Histogram(NamedTuple):
    """What one observation is, and the upper bounds of the buckets in seconds."""

    text: str
    buckets: tuple[float, ...]


def _decades(first: int, last: int, steps: tuple[float, ...]) -> tuple[float, ...]:
    """Each step in every decade: (1, 2, 5) from 10**-1 to 10**0 is 0.1, 0.2, 0.5, 1, 2, 5."""
    return tuple(float(f"{step}e{exp}") for exp in range(first, last + 1) for step in steps)


FINE, COARSE = (1, 1.5, 2, 3, 5, 7), (1, 2, 5)

# An observation is a trip to the server process (50 us). So a sequence makes one of its mean.
HISTOGRAMS = {
    "tandem_time_to_first_token_seconds": Histogram(
        "From a request's arrival to a sequence's first token, waiting included; one a sequence",
        _decades(-3, 1, FINE),
    ),
    "tandem_inter_token_latency_seconds": Histogram(
        "Time per token after the first delivery, the mean of a sequence; one a sequence",
        _decades(-4, 0, FINE),
    ),
    "tandem_round_seconds": Histogram(
        "Time per round, the mean of a sequence; one a sequence", _decades(-4, 1, COARSE)
    ),
    "tandem_round_part_seconds": Histogram(
        "Time per round in draft, target and orchestration, the mean of a sequence; one a sequence",
        _decades(-4, 1, COARSE),
    ),
}
