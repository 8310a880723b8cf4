"""Publishes the loop's metrics on Triton's ``/metrics``.

Two threads that change the same metric at the same time crash the server, because a metric object
holds the message with its change (Triton 2.51). So decoding threads only update numbers here, and
one thread publishes them.

A change that Triton rejects, such as decrementing a counter, raises and can crash the server. Such
changes aren't sent. Other changes that fail are retried at the next publication.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.bls import metrics
from tandem.bls.drafters.registry import DRAFTERS, LOOKUP_POOL, PREDICTION, DrafterName
from tandem.bls.metrics import (
    Key,
    MetricUpdates,
    key_of,
    sequence_updates,
    zero_draft_updates,
    zero_updates,
)
from tandem.bls.statistics import Statistics, Timeline
from tandem.bls.triton.background import log_exception
from tandem.contract.metric import Metric

HEARTBEAT_SECONDS = 1.0


class Metrics:
    """Metrics of the loop. Sequences are counted when they end.

    drafters: names whose counters appear with 0 before the first sequence ends, because Prometheus
    ignores the first value of a series. has_pools: whether the counters of drafts from lookup pools
    appear too.
    """

    def __init__(
        self, model: str, drafters: Iterable[DrafterName], *, has_pools: bool = False
    ) -> None:
        self._labels = {"model": model}
        self._families = {metric: _family(metric) for metric in metrics.METRICS}
        self._metrics: dict[Key, Any] = {}
        self._published: dict[Key, float] = {}
        self._unpublished = MetricUpdates()
        self._lock = threading.Lock()
        for drafter in drafters:
            self._unpublished.add(zero_updates(drafter))
            if DRAFTERS[drafter].looks_up:
                self._unpublished.add(zero_draft_updates(PREDICTION))
        if has_pools:
            self._unpublished.add(zero_draft_updates(LOOKUP_POOL))

    def count(self, drafter: DrafterName, statistics: Statistics, timeline: Timeline) -> None:
        """Count an ended sequence whose request selected ``drafter``. Any thread may call this."""
        updates = sequence_updates(drafter, statistics, timeline)
        with self._lock:
            self._unpublished.add(updates)

    def count_rejected_guide(self, keyword: str) -> None:
        """Count a guide that couldn't be compiled. Any thread may call this.

        keyword: keyword of the guide that isn't supported.
        """
        with self._lock:
            self._unpublished.count(metrics.GUIDES_REJECTED, 1, keyword=keyword)

    def publish(
        self,
        *,
        running: int,
        waiting: int,
        kv_reserved: float,
        pool_tokens: int,
        oldest_delivery: int,
        abandoned: Mapping[str, int],
    ) -> None:
        """Update ``/metrics``. Only one thread may call this.

        If changes fail, raises the first error after publishing all other changes.
        """
        with self._lock:
            updates, self._unpublished = self._unpublished, MetricUpdates()
        gauges = {
            key_of(metrics.REQUESTS_RUNNING): running,
            key_of(metrics.REQUESTS_WAITING): waiting,
            key_of(metrics.KV_RESERVED): kv_reserved,
            key_of(metrics.LOOKUP_POOL_TOKENS): pool_tokens,
            key_of(metrics.OLDEST_DELIVERY): oldest_delivery,
            **{
                key_of(metrics.ABANDONED_CALLS, engine=engine): calls
                for engine, calls in abandoned.items()
            },
        }
        errors: list[Exception] = []

        def try_change(key: Key, change: str, value: float) -> bool:
            """Change a metric, and return whether that succeeded."""
            try:
                getattr(self._metric(key), change)(value)
            except Exception as error:  # noqa: BLE001  publish the others
                errors.append(error)
                return False
            return True

        failed = MetricUpdates()
        for key, value in updates.counts.items():
            # Each change is a call to the server process, so 0 is published only once.
            needed = _can_add(key, value) and (value or key not in self._metrics)
            if needed and not try_change(key, "increment", value):
                failed.counts[key] = value
        for key, value in updates.observations:
            if _can_add(key, value) and not try_change(key, "observe", value):
                failed.observations.append((key, value))
        for key, value in gauges.items():
            if self._published.get(key) != value and try_change(key, "set", value):
                self._published[key] = value
        with self._lock:
            self._unpublished.add(failed)
        if errors:
            raise errors[0]

    def _metric(self, key: Key) -> Any:
        if key not in self._metrics:
            name, labels = key
            more = {"buckets": list(name.buckets)} if name.buckets else {}
            all_labels = self._labels | dict(labels)
            self._metrics[key] = self._families[name].Metric(labels=all_labels, **more)
        return self._metrics[key]


class Heartbeat:
    """Metric with the time at which a model's watcher last ran, for liveness probes."""

    def __init__(self, model: str) -> None:
        self._family = _family(metrics.HEARTBEAT)  # kept, because a metric ends with its family
        self._metric = self._family.Metric(labels={"model": model})
        self._next = 0.0

    def beat(self) -> None:
        """Publish the time, at most once per second, because it is a call to the server process."""
        now = time.monotonic()
        if now >= self._next:
            self._metric.set(time.time())
            self._next = now + HEARTBEAT_SECONDS


def _can_add(key: Key, value: float) -> bool:
    """Return whether a counter accepts the increment. If not, log it as a bug of Tandem."""
    if math.isfinite(value) and value >= 0:
        return True
    log_exception(f"counter {key[0]} can't increase by {value}", ValueError(value))
    return False


def _family(metric: Metric) -> Any:
    kind = getattr(pb_utils.MetricFamily, metric.kind.upper())
    return pb_utils.MetricFamily(name=metric, description=metric.help, kind=kind)
