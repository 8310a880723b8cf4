"""The engines' metrics on `/metrics`."""

from __future__ import annotations

from tandem.contract.metric import MetricList

METRICS = MetricList()

COMPUTED_TOKENS = METRICS.counter(
    "tandem_engine_computed_tokens_total",
    "Tokens that the engine computed; tokens saved by KV reuse don't count",
)
REMOTE_CALLS = METRICS.counter(
    "tandem_engine_remote_calls_total",
    "Calls that a remote engine sent to a replica, by outcome (`ok`, `failed`)",
)
