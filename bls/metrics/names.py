"""Declares the loop's metrics. Those of speculation have vLLM's names, without its prefix."""

from __future__ import annotations

from tandem.contract.metric import MetricList


def _decades(first: int, last: int, steps: tuple[float, ...]) -> tuple[float, ...]:
    """Return each step in every decade: (1, 2, 5) from -1 to 0 gives 0.1, 0.2, 0.5, 1, 2, 5."""
    return tuple(float(f"{step}e{exp}") for exp in range(first, last + 1) for step in steps)


FINE, COARSE = (1, 1.5, 2, 3, 5, 7), (1, 2, 5)

METRICS = MetricList()

DRAFTS = METRICS.counter("spec_decode_num_drafts_total", "Rounds with draft tokens")
DRAFT_TOKENS = METRICS.counter("spec_decode_num_draft_tokens_total", "Draft tokens proposed")
ACCEPTED_TOKENS = METRICS.counter("spec_decode_num_accepted_tokens_total", "Draft tokens accepted")
ACCEPTED_TOKENS_PER_POS = METRICS.counter(
    "spec_decode_num_accepted_tokens_per_pos_total", "Draft tokens accepted, by their position"
)
ROUNDS = METRICS.counter(
    "tandem_rounds_total", "Rounds; a token that the target decoded alone is one"
)
OUTPUT_TOKENS = METRICS.counter("tandem_output_tokens_total", "Tokens of all answers")
ROUND_PART_SECONDS_TOTAL = METRICS.counter(
    "tandem_round_part_seconds_total",
    "Seconds of decoding by part: draft and target by the engines' own clocks; orchestration is "
    "the rest, from a sequence's start to its last token",
)
AHEAD_CALLS = METRICS.counter(
    "tandem_draft_ahead_calls_total", "Rounds during whose verification the next was drafted"
)
AHEAD_BRANCHES = METRICS.counter(
    "tandem_draft_ahead_branches_total", "Branches drafted, each after one outcome of a round"
)
AHEAD_WASTED_BRANCHES = METRICS.counter(
    "tandem_draft_ahead_wasted_branches_total", "Branches that no round used"
)
AHEAD_HITS = METRICS.counter(
    "tandem_draft_ahead_hits_total",
    "Rounds whose draft was a branch, by the tokens that the round before accepted",
)
AHEAD_SAVED_SECONDS = METRICS.counter(
    "tandem_draft_ahead_saved_seconds_total", "Seconds that draft calls instead would have taken"
)
DRAFTER_FAILURES = METRICS.counter(
    "tandem_drafter_failures_total", "Draft calls that failed or were refused"
)
UNVERIFIED_DRAFT_TOKENS = METRICS.counter(
    "tandem_unverified_draft_tokens_total",
    "Draft tokens that the target dropped without verifying them; a lower bound",
)
GUIDES_REFUSED = METRICS.counter(
    "tandem_guides_refused_total", "Guides that could not be compiled, by the keyword that is why"
)
FORCED_TOKENS = METRICS.counter(
    "tandem_forced_tokens_total", "Tokens of answers that a guide left no choice for"
)
REPAIRED_TOKENS = METRICS.counter(
    "tandem_repaired_tokens_total", "Tokens that the target drew again to fit a guide"
)
ILLEGAL_DRAFT_TOKENS = METRICS.counter(
    "tandem_illegal_draft_tokens_total", "Draft tokens dropped because a guide forbids one"
)
RECOMPUTED_TOKENS = METRICS.counter(
    "tandem_recomputed_tokens_total", "Context tokens computed again after an eviction"
)

REQUESTS_RUNNING = METRICS.gauge("tandem_requests_running", "Sequences decoding now")
REQUESTS_WAITING = METRICS.gauge(
    "tandem_requests_waiting", "Sequences waiting, for the tokenizer or KV blocks"
)
KV_RESERVED = METRICS.gauge(
    "tandem_kv_reserved_ratio",
    "Share of the target's KV cache that running sequences may need",
)
LOOKUP_POOL_TOKENS = METRICS.gauge(
    "tandem_lookup_pool_tokens", "Tokens of earlier answers in the pools of prompt lookup"
)
OLDEST_DELIVERY = METRICS.gauge(
    "tandem_oldest_untaken_response_seconds",
    "How long the server has not accepted a response; above 30, its streams hang",
)
ABANDONED_CALLS = METRICS.gauge(
    "tandem_abandoned_calls", "Engine calls abandoned without an answer"
)

# An observation is a trip to the server process (50 us), so each sequence observes only its mean.
TIME_TO_FIRST_TOKEN = METRICS.histogram(
    "tandem_time_to_first_token_seconds",
    "From a request's arrival to a sequence's first token, waiting included; one a sequence",
    _decades(-3, 1, FINE),
)
INTER_TOKEN_LATENCY = METRICS.histogram(
    "tandem_inter_token_latency_seconds",
    "Time per token after the first delivery, the mean of a sequence; one a sequence",
    _decades(-4, 0, FINE),
)
ROUND_SECONDS = METRICS.histogram(
    "tandem_round_seconds",
    "Time per round, the mean of a sequence; one a sequence",
    _decades(-4, 1, COARSE),
)
ROUND_PART_SECONDS = METRICS.histogram(
    "tandem_round_part_seconds",
    "Time per round in draft, target and orchestration, the mean of a sequence; one a sequence",
    _decades(-4, 1, COARSE),
)

# Of every model with a watcher, not only of the loop: cancellations, deadlines and these metrics
# depend on it.
WATCHER = MetricList()
HEARTBEAT = WATCHER.gauge(
    "tandem_watcher_last_look_timestamp_seconds",
    "When the thread that watches over the model's requests was last at work, in Unix time",
)
