"""A gateway's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

# By default, each counter would have a second series with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]


class GatewayMetrics:
    """The metrics of one gateway. Metrics of speculation have vLLM's names."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, help_: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, help_, labels, registry=registry)

        def seconds(name: str, help_: str) -> Histogram:
            return Histogram(name, help_, registry=registry, buckets=SECONDS)

        self.requests = counter(
            "tandem_gateway_requests_total",
            "Requests answered; status 499 if the client disconnected first.",
            ("endpoint", "status"),
        )
        self.running = Gauge(
            "tandem_gateway_requests_running", "Requests in progress.", registry=registry
        )
        self.prompt_tokens = counter("vllm:prompt_tokens_total", "Prompt tokens.")
        self.generation_tokens = counter("vllm:generation_tokens_total", "Output tokens.")
        self.first_token = seconds(
            "vllm:time_to_first_token_seconds",
            "Seconds from a request to the first chunk of its stream.",
        )
        self.latency = seconds(
            "vllm:e2e_request_latency_seconds", "Seconds from a request to the end of its answer."
        )
        self._drafts = counter("vllm:spec_decode_num_drafts_total", "Rounds with draft tokens.")
        self._draft_tokens = counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens.")
        self._accepted = counter(
            "vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens."
        )
        self._per_position = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "Accepted draft tokens, by position in the draft.",
            ("position",),
        )

    def count(self, speculation: Mapping[str, Any]) -> None:
        """Add a request's speculation statistics, which have vLLM's names."""
        self._drafts.inc(speculation["num_spec_steps"])
        self._draft_tokens.inc(speculation["num_draft_tokens"])
        self._accepted.inc(speculation["num_accepted_draft_tokens"])
        histogram = speculation["acceptance_histogram"]
        for position in range(len(histogram) - 1):
            self._per_position.labels(position).inc(sum(histogram[position + 1 :]))

    def text(self) -> bytes:
        return generate_latest(self.registry)
