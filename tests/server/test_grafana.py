"""All queries of the Grafana dashboard find their metrics and labels on a live server."""

import json
import re
from pathlib import Path

import promql_parser as promql
import pytest
from entries import ask_one
from live_triton import eventually
from metrics import scrape, total

FILE = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "tandem.json"
DASHBOARD = json.loads(FILE.read_text())
TARGETS = [
    (target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
VARIABLES = [v["definition"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
FILLED_IN = {"$__rate_interval": "1m", "$__range": "15m", "$model": ".*", "$drafter": ".*"}


@pytest.fixture(scope="module")
def samples(server):
    """Metric samples after requests with every drafter."""
    drafters = ("draft_model", "prompt_lookup", "hybrid", "none")
    for drafter in drafters:
        ask_one(server, "bls", "def a(): return a", drafter=drafter, max_tokens=16)
    name = "tandem_round_seconds_count"
    assert eventually(lambda: all(total(server, name, drafter=drafter) for drafter in drafters))
    return [(name, dict(labels)) for name, labels in scrape(server)]


def parsed(query):
    for variable, value in FILLED_IN.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return promql.parse(query)


def selections(expression):
    """Return all selectors of an expression, each with the grouping labels that surround it."""
    found, around = [], [frozenset()]

    def enter(part):
        if isinstance(part, promql.AggregateExpr):
            around.append(around[-1] | set(part.modifier.labels if part.modifier else ()))
        elif isinstance(part, promql.VectorSelector):
            found.append((part, around[-1]))

    def leave(part):
        if isinstance(part, promql.AggregateExpr):
            around.pop()

    promql.walk(expression, enter, leave)
    return found


def matches(matcher, value):
    assert matcher.op in (promql.MatchOp.Equal, promql.MatchOp.Re)
    if matcher.op == promql.MatchOp.Equal:
        return value == matcher.value
    return re.fullmatch(matcher.value, value) is not None


def finds(selector, labels, samples):
    """Return whether the selector matches a sample that has all these labels."""
    return any(
        name == selector.name
        and labels <= theirs.keys()
        and all(m.name in theirs and matches(m, theirs[m.name]) for m in selector.matchers.matchers)
        for name, theirs in samples
    )


def test_each_query_finds_metrics_with_its_labels(samples):
    for query, legend in TARGETS:
        selected = selections(parsed(query))
        assert selected
        for selector, labels in selected:
            assert finds(selector, labels, samples), f"{selector} by {sorted(labels)}"
        shown = set(re.findall(r"{{(\w+)}}", legend))
        assert shown <= selected[0][1], f"{query}: the legend {legend} names other labels"
    for query in VARIABLES:
        selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
        assert finds(parsed(selector), {label}, samples)
