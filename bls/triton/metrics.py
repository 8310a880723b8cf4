"""The loop's figures on Triton's ``/metrics``.

Two threads that change one metric at the same time crash the server (Triton 2.51: a metric keeps
the message that carries its change in itself). So the threads that decode only add to numbers
here, and one thread publishes them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from bls.figures import Figures, Key, figures_of, key_of, zeros
from bls.settings import DrafterName
from bls.statistics import Statistics
from bls.timeline import Timeline
from bls.triton.metric_names import COUNTERS, GAUGES, HISTOGRAMS


class Metrics:
    """Figures of one model. Sequences are counted when they end.

    The counters of ``drafters`` are there, at 0, before the first sequence ends: Prometheus takes
    no notice of what a series begins with.
    """

    def __init__(self, model: str, drafters: Iterable[DrafterName]) -> None:
        self._model = model
        self._families = dict(_families())
        self._metrics: dict[Key, Any] = {}
        self._shown: dict[Key, float] = {}
        self._unpublished = Figures()
        self._lock = threading.Lock()
        for drafter in drafters:
            self._unpublished.add(zeros(drafter))

    def count(self, drafter: DrafterName, statistics: Statistics, timeline: Timeline) -> None:
        """Add one ended sequence; any thread may. ``drafter`` is what it asked for."""
        figures = figures_of(drafter, statistics, timeline)
        with self._lock:
            self._unpublished.add(figures)

    def publish(
        self, *, running: int, waiting: int, kv_reserved: float, lost: Mapping[str, int]
    ) -> None:
        """Bring ``/metrics`` up to date. One thread only."""
        with self._lock:
            figures, self._unpublished = self._unpublished, Figures()
        for key, value in figures.counts.items():
            if value or key not in self._metrics:  # each change is a trip to the server process
                self._metric(key).increment(value)
        for key, value in figures.observations:
            self._metric(key).observe(value)
        self._show(key_of("tandem_requests_running"), running)
        self._show(key_of("tandem_requests_waiting"), waiting)
        self._show(key_of("tandem_kv_reserved_ratio"), kv_reserved)
        for engine, calls in lost.items():
            self._show(key_of("tandem_lost_calls", engine=engine), calls)

    def _show(self, key: Key, value: float) -> None:
        """Set a gauge, if it changed."""
        if self._shown.get(key) != value:
            self._shown[key] = value
            self._metric(key).set(value)

    def _metric(self, key: Key) -> Any:
        if key not in self._metrics:
            name, labels = key
            more = {"buckets": list(HISTOGRAMS[name].buckets)} if name in HISTOGRAMS else {}
            of_model = {"model": self._model, **dict(labels)}
            self._metrics[key] = self._families[name].Metric(labels=of_model, **more)
        return self._metrics[key]


def _families() -> Iterator[tuple[str, Any]]:
    family = pb_utils.MetricFamily
    observed = {name: histogram.text for name, histogram in HISTOGRAMS.items()}
    for texts, kind in (
        (COUNTERS, family.COUNTER),
        (GAUGES, family.GAUGE),
        (observed, family.HISTOGRAM),
    ):
        for name, text in texts.items():
            yield name, family(name=name, description=text, kind=kind)
