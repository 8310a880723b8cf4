"""The loop's metrics on Triton's ``/metrics``.

Two threads that change one metric at the same time crash the server (Triton 2.51: a metric keeps
the message with its change in itself). So the threads that decode only add to numbers
here, and one thread publishes them.

A change that Triton refuses (a counter that would fall) raises, and can bring the whole server
down: none is sent. One that does not get through is made up for at the next chance.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.bls.drafters.registry import LOOKUP_POOL, DrafterName
from tandem.bls.metrics.names import (
    ABANDONED_CALLS,
    GUIDES_REFUSED,
    HEARTBEAT,
    KV_RESERVED,
    LOOKUP_POOL_TOKENS,
    METRICS,
    OLDEST_DELIVERY,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
)
from tandem.bls.metrics.request_statistics import Statistics
from tandem.bls.metrics.timeline import Timeline
from tandem.bls.metrics.updates import (
    Key,
    MetricUpdates,
    key_of,
    updates_of,
    zero_drafts,
    zeros,
)
from tandem.bls.triton.background import log_exception
from tandem.contract.metric import Metric

HEARTBEAT_SECONDS = 1.0


class Metrics:
    """Metrics of one loop. Sequences are counted when they end.

    Each loop of a model has series of its own, by the label ``loop``: the last one to publish would
    overwrite the gauges of the others.

    The counters of ``drafters`` are there, at 0, before the first sequence ends: Prometheus takes
    no notice of what a series begins with. has_pools: so are those of drafts from pools.
    """

    def __init__(
        self, model: str, loop: str, drafters: Iterable[DrafterName], *, has_pools: bool = False
    ) -> None:
        self._labels = {"model": model, "loop": loop}
        self._families = {metric: _family(metric) for metric in METRICS}
        self._metrics: dict[Key, Any] = {}
        self._shown: dict[Key, float] = {}
        self._unpublished = MetricUpdates()
        self._lock = threading.Lock()
        for drafter in drafters:
            self._unpublished.add(zeros(drafter))
        if has_pools:
            self._unpublished.add(zero_drafts(LOOKUP_POOL))

    def count(self, drafter: DrafterName, statistics: Statistics, timeline: Timeline) -> None:
        """Add one ended sequence; any thread may. ``drafter`` is what it asked for."""
        updates = updates_of(drafter, statistics, timeline)
        with self._lock:
            self._unpublished.add(updates)

    def count_refused_guide(self, keyword: str) -> None:
        """Add one guide that could not be compiled; any thread may."""
        with self._lock:
            self._unpublished.count(GUIDES_REFUSED, 1, keyword=keyword)

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
        """Bring ``/metrics`` up to date. One thread only.

        Raises the first error that it met, after all that could be published.
        """
        with self._lock:
            updates, self._unpublished = self._unpublished, MetricUpdates()
        gauges = {
            key_of(REQUESTS_RUNNING): running,
            key_of(REQUESTS_WAITING): waiting,
            key_of(KV_RESERVED): kv_reserved,
            key_of(LOOKUP_POOL_TOKENS): pool_tokens,
            key_of(OLDEST_DELIVERY): oldest_delivery,
            **{
                key_of(ABANDONED_CALLS, engine=engine): calls for engine, calls in abandoned.items()
            },
        }
        errors = [*self._publish(updates), *self._show(gauges)]
        if errors:
            raise errors[0]

    def _publish(self, updates: MetricUpdates) -> Iterator[Exception]:
        """Publish counters and histograms; keep what Triton refused. Yield the errors."""
        left = MetricUpdates()
        for key, value in updates.counts.items():
            if not _grows(key, value):
                continue
            try:
                if value or key not in self._metrics:  # a change is a trip to the server process
                    self._metric(key).increment(value)
            except Exception as error:  # noqa: BLE001  the others are not concerned
                left.counts[key] = value
                yield error
        for key, value in updates.observations:
            if not _grows(key, value):
                continue
            try:
                self._metric(key).observe(value)
            except Exception as error:  # noqa: BLE001
                left.observations.append((key, value))
                yield error
        with self._lock:
            self._unpublished.add(left)

    def _show(self, gauges: Mapping[Key, float]) -> Iterator[Exception]:
        """Set the gauges that changed; yield the errors."""
        for key, value in gauges.items():
            if self._shown.get(key) == value:
                continue
            try:
                self._metric(key).set(value)
            except Exception as error:  # noqa: BLE001  the others are not concerned
                yield error
            else:
                self._shown[key] = value

    def _metric(self, key: Key) -> Any:
        if key not in self._metrics:
            name, labels = key
            more = {"buckets": list(name.buckets)} if name.buckets else {}
            own = self._labels | dict(labels)
            self._metrics[key] = self._families[name].Metric(labels=own, **more)
        return self._metrics[key]


class Heartbeat:
    """When a model's watcher was last at work: what a liveness probe asks.

    labels: ``model``, and ``loop`` where the model has loops.
    """

    def __init__(self, **labels: str) -> None:
        self._family = _family(HEARTBEAT)  # a metric dies with its family
        self._metric = self._family.Metric(labels=labels)
        self._next = 0.0

    def beat(self) -> None:
        """Show that the watcher looks; a trip to the server process now and then is enough."""
        now = time.monotonic()
        if now >= self._next:
            self._metric.set(time.time())
            self._next = now + HEARTBEAT_SECONDS


def _grows(key: Key, value: float) -> bool:
    """Whether a counter may take the value; one that may not is a fault of ours, and left out."""
    if math.isfinite(value) and value >= 0:
        return True
    log_exception(f"{value} is not an increase of {key[0]}", ValueError(value))
    return False


def _family(metric: Metric) -> Any:
    kind = getattr(pb_utils.MetricFamily, metric.kind.upper())
    return pb_utils.MetricFamily(name=metric, description=metric.help, kind=kind)
