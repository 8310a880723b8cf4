"""Generates the Grafana dashboard, tandem.json.

Run this script after a change to it. A test fails if tandem.json is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tandem.json")
WIDTH = 24  # columns of Grafana's grid
HEIGHT = 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'model=~"$model", drafter=~"$drafter"'


def rate(metric: str, by: str = "", where: str = CHOSEN, window: str = "$__rate_interval") -> str:
    """Return the query for a counter's rate per second, summed over all labels except ``by``."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[{window}]))"


def ratio(over: str, under: str, by: str = "", *, window: str = "$__rate_interval") -> str:
    """Return the query for the quotient of two counters' rates."""
    return f"{rate(over, by, window=window)} / {rate(under, by, window=window)}"


def quantiles(histogram: str) -> dict[str, str]:
    """Return the queries for a histogram's quantiles, by legend."""
    buckets = rate(f"{histogram}_bucket", "le")
    return {
        f"p{quantile}": f"histogram_quantile({quantile / 100:g}, {buckets})"
        for quantile in (50, 90, 99)
    }


def panel(
    title: str, description: str, unit: str, queries: dict[str, str], **more: Any
) -> dict[str, Any]:
    """Return a panel with curves. queries: legend -> query."""
    custom = {"fillOpacity": 10, "showPoints": "never"} | more.pop("custom", {})
    legend = {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "mean"]}
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": query, "legendFormat": legend}
            for n, (legend, query) in enumerate(queries.items())
        ],
    } | more


def by_position() -> dict[str, Any]:
    """Return a panel with the acceptance rate per position in the draft, over the time range."""
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    accepted = rate(name, "position", window="$__range")
    drafts = rate("spec_decode_num_drafts_total", window="$__range")
    bars = panel(
        "Acceptance by position",
        "Share of the rounds with draft tokens that accepted the token at this position (0 is the "
        "first). Short drafts have no late positions.",
        "percentunit",
        {"{{position}}": f"sort_desc({accepted} / on () group_left () {drafts})"},
        type="bargauge",
        options={
            "orientation": "horizontal",
            "displayMode": "basic",
            "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
        },
    )
    bars["targets"][0]["instant"] = True
    bars["fieldConfig"]["defaults"] = {"unit": "percentunit", "min": 0, "max": 1}
    return bars


def rows() -> Iterator[list[dict[str, Any]]]:
    """Yield the panels, row by row."""
    yield [
        panel(
            "Acceptance rate",
            "Accepted / drafted tokens. With drafter hybrid, tokens count for the drafter that "
            "proposed them.",
            "percentunit",
            {
                "{{drafter}}": ratio(
                    "spec_decode_num_accepted_tokens_total",
                    "spec_decode_num_draft_tokens_total",
                    "drafter",
                )
            },
        ),
        by_position(),
        panel(
            "Tokens per round",
            "Emitted tokens / rounds. Without draft tokens (drafter none, or nothing proposed), it "
            "is one per round.",
            "short",
            {"{{drafter}}": ratio("tandem_output_tokens_total", "tandem_rounds_total", "drafter")},
        ),
    ]
    yield [
        panel(
            "Tokens per second",
            "Output tokens of all requests. A sequence counts when it ends.",
            "short",
            {"{{drafter}}": rate("tandem_output_tokens_total", "drafter")},
        ),
        panel(
            "Time to first token",
            "From a request's arrival, including queueing.",
            "s",
            quantiles("tandem_time_to_first_token_seconds"),
        ),
        panel(
            "Inter-token latency",
            "Time per token after the first delivery: quantiles of the means per sequence.",
            "s",
            quantiles("tandem_inter_token_latency_seconds"),
        ),
    ]
    per_round = (
        f"{rate('tandem_round_part_seconds_total', 'part')}"
        f" / on () group_left () {rate('tandem_rounds_total')}"
    )
    yield [
        panel(
            "Time per round",
            "Means. The engines report draft and target time; orchestration is the rest, from a "
            "sequence's first call to its last token.",
            "s",
            {"{{part}}": per_round},
            custom={"fillOpacity": 60, "stacking": {"mode": "normal"}},
        ),
        panel(
            "Time per round, quantiles",
            "Quantiles of the means per sequence.",
            "s",
            quantiles("tandem_round_seconds"),
        ),
        panel(
            "Requests",
            "Sequences that decode, and sequences that wait for KV cache or a free slot.",
            "short",
            {
                state: f'sum (tandem_requests_{state}{{model=~"$model"}})'
                for state in ("running", "waiting")
            },
        ),
    ]
    yield [
        panel(
            "KV cache reserved",
            "Share of the KV cache reserved for running sequences. At 1, others wait.",
            "percentunit",
            {"fullest": 'max (sum without (loop) (tandem_kv_reserved_ratio{model=~"$model"}))'},
        ),
        panel(
            "Tokens computed",
            "Tokens per second that each engine computed, and context tokens recomputed after an "
            "eviction.",
            "short",
            {
                "{{model}}": rate("tandem_engine_computed_tokens_total", "model", where=""),
                "recomputed": rate("tandem_recomputed_tokens_total"),
            },
        ),
        panel(
            "Drafter failures",
            "Failed draft calls per second. Their requests continue without drafts.",
            "short",
            {"{{drafter}}": rate("tandem_drafter_failures_total", "drafter")},
        ),
    ]
    per_ahead_round = {
        "rounds / all rounds": ratio("tandem_draft_ahead_calls_total", "tandem_rounds_total"),
        "hits / these": ratio("tandem_draft_ahead_hits_total", "tandem_draft_ahead_calls_total"),
    }
    yield [
        panel(
            "Drafting ahead",
            "Share of rounds drafted ahead during the previous verification, and share of these "
            "that predicted its outcome.",
            "percentunit",
            per_ahead_round,
        ),
        panel(
            "Time saved by drafting ahead",
            "Seconds of draft calls saved per second, over all sequences.",
            "s",
            {"{{drafter}}": rate("tandem_draft_ahead_saved_seconds_total", "drafter")},
        ),
        panel(
            "Lookup pools",
            "Tokens in all lookup pools, from which prompt lookup copies.",
            "short",
            {"tokens": 'sum (tandem_lookup_pool_tokens{model=~"$model"})'},
        ),
    ]
    yield [
        panel(
            "Lost calls",
            "Engine calls without a response after their timeout. At 32, a loop stops calling the "
            "engine until the server restarts.",
            "short",
            {
                "{{engine}}, loop {{loop}}": "max by (engine, loop) "
                '(tandem_abandoned_calls{model=~"$model"})'
            },
        ),
        panel(
            "Time since the last check",
            "Seconds since each model last checked its requests (maximum over loops). If it grows, "
            "cancellation and timeouts don't work; restart the server.",
            "s",
            {"{{model}}": "time() - min by (model) (tandem_watcher_last_look_timestamp_seconds)"},
        ),
        panel(
            "Response not taken",
            "Age of the oldest response that Triton hasn't taken. Above 30 s, gRPC streams hang; "
            "restart the server.",
            "s",
            {
                "{{model}}, loop {{loop}}": "max by (model, loop) "
                '(tandem_oldest_untaken_response_seconds{model=~"$model"})'
            },
        ),
    ]


def placed() -> Iterator[dict[str, Any]]:
    """Yield the panels with their positions in the grid."""
    number = 0
    for y, row in enumerate(rows()):
        width = WIDTH // len(row)
        for x, made in enumerate(row):
            number += 1
            place = {"x": x * width, "y": y * HEIGHT, "w": width, "h": HEIGHT}
            yield {"id": number, "gridPos": place} | made


def variable(name: str, query: str) -> dict[str, Any]:
    """Return a selector for a label's values; the default is all values."""
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's import format."""
    datasource = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "current": {"text": "Prometheus", "value": "prometheus"},
    }
    return {
        "uid": "tandem",
        "title": "Tandem: speculative decoding",
        "tags": ["tandem"],
        "schemaVersion": 41,
        "editable": True,
        "graphTooltip": 1,  # shared cursor in all panels
        "refresh": "10s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {
            "list": [
                datasource,
                variable("model", "label_values(tandem_rounds_total, model)"),
                variable("drafter", 'label_values(tandem_rounds_total{model=~"$model"}, drafter)'),
            ]
        },
        "panels": list(placed()),
    }


def text() -> str:
    """Return the content of tandem.json."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
