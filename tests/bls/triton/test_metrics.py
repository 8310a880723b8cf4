"""Published counters never decrease, and no update is lost or repeated."""

import pytest

from tandem.bls.metrics import HEARTBEAT, OUTPUT_TOKENS, ROUND_SECONDS, ROUNDS, MetricUpdates
from tandem.bls.statistics import Round, Statistics, Timeline
from tandem.bls.triton.metrics import Heartbeat, Metrics

GAUGES = {
    "running": 2,
    "waiting": 1,
    "kv_reserved": 0.5,
    "pool_tokens": 0,
    "oldest_delivery": 7,
    "abandoned": {"target": 3},
}


@pytest.fixture
def metrics():
    return Metrics("bls_stream", ["draft_model"])


@pytest.fixture
def shown(pb):
    """shown(name, **labels) returns the value of one of the model's metrics."""

    def value(name, **labels):
        key = name, frozenset({"model": "bls_stream", **labels}.items())
        metric = pb.MetricFamily.metrics[key]
        return metric.observed if metric.kind == "histogram" else metric.value

    return value


def ended(*rounds):
    """Return the statistics and the timeline of a sequence with these rounds."""
    statistics, timeline = Statistics(), Timeline(arrival=1)
    timeline.mark_scheduled()
    for round_ in rounds:
        statistics.add(round_)
        timeline.record_delivery(round_.num_accepted_tokens + 1)
    return statistics, timeline


ROUND = Round(num_draft_tokens=4, num_accepted_tokens=3, drafter="draft_model")


def test_counters_and_gauges_are_published(metrics, shown):
    metrics.count("draft_model", *ended(ROUND, ROUND))
    metrics.publish(**GAUGES)
    assert shown("tandem_rounds_total", drafter="draft_model") == 2
    assert shown("spec_decode_num_accepted_tokens_total", drafter="draft_model") == 6
    assert shown("tandem_requests_running") == 2
    assert shown("tandem_oldest_untaken_response_seconds") == 7
    assert shown("tandem_abandoned_calls", engine="target") == 3


def test_counters_of_pool_drafts_start_at_zero_if_pools_are_enabled(shown):
    Metrics("bls_stream", ["prompt_lookup"]).publish(**GAUGES)
    with pytest.raises(KeyError):
        shown("spec_decode_num_drafts_total", drafter="lookup_pool")
    pooling = Metrics("bls_stream", ["prompt_lookup"], has_pools=True)
    pooling.publish(**GAUGES | {"pool_tokens": 77})
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert shown(f"spec_decode_num_{name}_total", drafter="lookup_pool") == 0
    assert shown("tandem_lookup_pool_tokens") == 77


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), -float("inf")])
def test_invalid_increments_are_logged_and_skipped(metrics, shown, pb, value):
    """Triton raises an exception or exits on a negative increment."""
    wrong = MetricUpdates()
    wrong.count(ROUNDS, value, drafter="draft_model")
    wrong.count(OUTPUT_TOKENS, 5, drafter="draft_model")
    wrong.observe(ROUND_SECONDS, value, drafter="draft_model")
    metrics.publish(**GAUGES)
    metrics._unpublished.add(wrong)
    metrics.publish(**GAUGES)
    assert shown("tandem_rounds_total", drafter="draft_model") == 0
    assert shown("tandem_output_tokens_total", drafter="draft_model") == 5
    assert any("tandem_rounds_total" in line for line in pb.Logger.lines)
    metrics.count("draft_model", *ended(ROUND))
    metrics.publish(**GAUGES)
    assert shown("tandem_rounds_total", drafter="draft_model") == 1
    assert len(shown("tandem_round_seconds", drafter="draft_model")) == 1


def test_failed_updates_are_published_later_exactly_once(metrics, shown, pb):
    metrics.publish(**GAUGES)
    metrics.count("draft_model", *ended(ROUND))
    pb.MetricFamily.full = True
    for _ in range(3):
        with pytest.raises(pb.TritonModelException):
            metrics.publish(**GAUGES | {"running": 7})
    metrics.count("draft_model", *ended(ROUND))
    pb.MetricFamily.full = False
    for _ in range(2):
        metrics.publish(**GAUGES | {"running": 7})
    assert shown("tandem_rounds_total", drafter="draft_model") == 2
    assert shown("spec_decode_num_draft_tokens_total", drafter="draft_model") == 8
    assert len(shown("tandem_round_seconds", drafter="draft_model")) == 2
    assert shown("tandem_requests_running") == 7


def test_a_failing_metric_does_not_block_the_others(metrics, shown, pb):
    metrics.publish(**GAUGES)
    labels = {"model": "bls_stream", "drafter": "draft_model"}
    metric = pb.MetricFamily.metrics["tandem_rounds_total", frozenset(labels.items())]
    metric.increment = None  # so calling it raises an error
    metrics.count("draft_model", *ended(ROUND))
    with pytest.raises(TypeError):
        metrics.publish(**GAUGES | {"waiting": 9})
    assert shown("tandem_output_tokens_total", drafter="draft_model") == 4
    assert shown("tandem_requests_waiting") == 9


def test_the_heartbeat_is_published_once_per_second(pb, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("tandem.bls.triton.metrics.time.monotonic", lambda: clock[-1])
    monkeypatch.setattr("tandem.bls.triton.metrics.time.time", lambda: 5000 + clock[-1])
    heart = Heartbeat("bls")
    [metric] = pb.MetricFamily.metrics.values()
    seen = []
    for at in (100.0, 100.5, 100.99, 101.0, 103.0):
        clock.append(at)
        heart.beat()
        seen.append(metric.value)
    assert seen == [5100, 5100, 5100, 5101, 5103]
    assert HEARTBEAT.endswith("_timestamp_seconds")
