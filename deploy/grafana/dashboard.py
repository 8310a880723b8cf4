"""Generates Grafana's dashboard, tandem.json.

Run it after a change to rewrite tandem.json. A test fails if that file is out of date.
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
    """Return a counter's increase per second, summed over all labels but ``by``."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{where}}}[{window}]))"


def ratio(over: str, under: str, by: str = "", *, window: str = "$__rate_interval") -> str:
    """Return a quotient of two counters."""
    return f"{rate(over, by, window=window)} / {rate(under, by, window=window)}"


def quantiles(histogram: str) -> dict[str, str]:
    """Return the queries of a histogram's quantiles, by legend."""
    buckets = rate(f"{histogram}_bucket", "le")
    return {
        f"p{quantile}": f"histogram_quantile({quantile / 100:g}, {buckets})"
        for quantile in (50, 90, 99)
    }


def panel(
    title: str, description: str, unit: str, queries: dict[str, str], **more: Any
) -> dict[str, Any]:
    """Return a panel of curves; ``queries``: by legend."""
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
    """Return the bars of acceptance by position in the draft, over the time range shown."""
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    accepted = rate(name, "position", window="$__range")
    drafts = rate("spec_decode_num_drafts_total", window="$__range")
    bars = panel(
        "Acceptance by position",
        "Of the rounds with draft tokens, those that accepted the token at this position (0 is the "
        "first). Shorter drafts have no late positions.",
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
            "Accepted / drafted tokens. A hybrid's tokens are under the drafter that proposed "
            "them.",
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
            "Emitted tokens / rounds. The target alone makes one a round: drafter none, and rounds "
            "in which nothing was proposed.",
            "short",
            {"{{drafter}}": ratio("tandem_output_tokens_total", "tandem_rounds_total", "drafter")},
        ),
    ]
    yield [
        panel(
            "Tokens per second",
            "Of all answers. A sequence counts when it ends.",
            "short",
            {"{{drafter}}": rate("tandem_output_tokens_total", "drafter")},
        ),
        panel(
            "Time to first token",
            "From a request's arrival, waiting for room included.",
            "s",
            quantiles("tandem_time_to_first_token_seconds"),
        ),
        panel(
            "Inter-token latency",
            "Time per token after the first delivery: quantiles of the sequences' means.",
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
            "Exact means. Draft and target by the engines' own clocks; orchestration is the rest, "
            "from a sequence's first call to its last token.",
            "s",
            {"{{part}}": per_round},
            custom={"fillOpacity": 60, "stacking": {"mode": "normal"}},
        ),
        panel(
            "Time per round, quantiles",
            "Of the sequences' means.",
            "s",
            quantiles("tandem_round_seconds"),
        ),
        panel(
            "Requests",
            "Sequences that decode, and that wait for room.",
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
            "What the running sequences may come to need. Full, it is why others wait.",
            "percentunit",
            {"fullest": 'max (sum without (loop) (tandem_kv_reserved_ratio{model=~"$model"}))'},
        ),
        panel(
            "Tokens computed",
            "Tokens a second that went through each engine's model, and context tokens computed "
            "again after an eviction.",
            "short",
            {
                "{{model}}": rate("tandem_engine_computed_tokens_total", "model", where=""),
                "recomputed": rate("tandem_recomputed_tokens_total"),
            },
        ),
        panel(
            "Drafter failures",
            "Draft calls a second that failed. The answers went on without drafts.",
            "short",
            {"{{drafter}}": rate("tandem_drafter_failures_total", "drafter")},
        ),
    ]
    per_ahead_round = {
        "rounds, of all": ratio("tandem_draft_ahead_calls_total", "tandem_rounds_total"),
        "hits, of these": ratio("tandem_draft_ahead_hits_total", "tandem_draft_ahead_calls_total"),
    }
    yield [
        panel(
            "Drafting ahead",
            "Rounds during whose verification the next one was drafted, and those whose outcome "
            "was foreseen.",
            "percentunit",
            per_ahead_round,
        ),
        panel(
            "Time saved ahead",
            "Seconds a second, of all sequences, that draft calls would have taken instead.",
            "s",
            {"{{drafter}}": rate("tandem_draft_ahead_saved_seconds_total", "drafter")},
        ),
        panel(
            "Lookup pools",
            "Tokens of earlier answers that prompt lookup copies from, of all tenants.",
            "short",
            {"tokens": 'sum (tandem_lookup_pool_tokens{model=~"$model"})'},
        ),
    ]
    yield [
        panel(
            "Lost calls",
            "Engine calls past their timeout without an answer. At 32, a loop stops calling the "
            "engine until the server is restarted.",
            "short",
            {
                "{{engine}}, loop {{loop}}": "max by (engine, loop) "
                '(tandem_abandoned_calls{model=~"$model"})'
            },
        ),
        panel(
            "Since the last look",
            "Seconds since each model last checked its requests; of several loops, the highest. If "
            "it grows, cancellations and timeouts no longer work: restart the server.",
            "s",
            {"{{model}}": "time() - min by (model) (tandem_watcher_last_look_timestamp_seconds)"},
        ),
        panel(
            "Response not taken",
            "How long Triton has not taken a response. Above 30 s, no gRPC stream gets answers: "
            "restart the server.",
            "s",
            {
                "{{model}}, loop {{loop}}": "max by (model, loop) "
                '(tandem_oldest_untaken_response_seconds{model=~"$model"})'
            },
        ),
    ]


def placed() -> Iterator[dict[str, Any]]:
    """Yield the panels with their places in the grid."""
    number = 0
    for y, row in enumerate(rows()):
        width = WIDTH // len(row)
        for x, made in enumerate(row):
            number += 1
            place = {"x": x * width, "y": y * HEIGHT, "w": width, "h": HEIGHT}
            yield {"id": number, "gridPos": place} | made


def variable(name: str, query: str) -> dict[str, Any]:
    """Return a selector of a label's values; the default is all of them."""
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,  # with the time range
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
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
        "graphTooltip": 1,  # one cursor for all panels
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
