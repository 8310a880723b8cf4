"""The loop's figures on Triton's ``/metrics``; speculation's are named as vLLM's, unprefixed.

Two threads that change one metric at the same time crash the server (Triton 2.51: a metric keeps
the message that carries its change in itself). So the threads that decode only add to numbers
here, and one thread publishes them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from bls.settings import DrafterName
from bls.statistics import Statistics

COUNTERS = {
    "spec_decode_num_drafts_total": "Rounds with draft tokens",
    "spec_decode_num_draft_tokens_total": "Draft tokens proposed",
    "spec_decode_num_accepted_tokens_total": "Draft tokens accepted",
    "spec_decode_num_accepted_tokens_per_pos_total": "Draft tokens accepted, by their position",
    "tandem_drafter_failures_total": "Draft calls that failed",
    "tandem_recomputed_tokens_total": "Context tokens computed again after an eviction",
}
GAUGES = {
    "tandem_requests_running": "Sequences decoding now",
    "tandem_requests_waiting": "Sequences waiting for room",
    "tandem_lost_calls": "Engine calls given up without an answer",
}


Labels = frozenset[tuple[str, str]]


class Metrics:
    """Counters and gauges of one model. Requests are counted when they end."""

    def __init__(self, model: str) -> None:
        self._model = model
        family = pb_utils.MetricFamily
        kinds = ((COUNTERS, family.COUNTER), (GAUGES, family.GAUGE))
        self._families = {
            name: family(name=name, description=text, kind=kind)
            for texts, kind in kinds
            for name, text in texts.items()
        }
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._unpublished: Counter[tuple[str, Labels]] = Counter()
        self._shown: dict[tuple[str, Labels], int] = {}
        self._lock = threading.Lock()

    def count(self, drafter: DrafterName, statistics: Statistics) -> None:
        """Add one ended sequence; any thread may."""
        counts = {
            ("spec_decode_num_drafts_total", ""): statistics.num_spec_steps,
            ("spec_decode_num_draft_tokens_total", ""): statistics.num_draft_tokens,
            ("spec_decode_num_accepted_tokens_total", ""): statistics.num_accepted_draft_tokens,
            ("tandem_drafter_failures_total", ""): statistics.num_drafter_failures,
            ("tandem_recomputed_tokens_total", ""): statistics.num_recomputed_tokens,
        }
        for at, accepted in enumerate(_per_position(statistics.acceptance_histogram)):
            counts["spec_decode_num_accepted_tokens_per_pos_total", str(at)] = accepted
        with self._lock:
            for (name, position), value in counts.items():
                labels: dict[str, str] = {"drafter": drafter}
                if position:
                    labels["position"] = position
                self._unpublished[name, frozenset(labels.items())] += value

    def publish(self, *, running: int, waiting: int, lost: Mapping[str, int]) -> None:
        """Bring ``/metrics`` up to date. One thread only."""
        with self._lock:
            counted, self._unpublished = self._unpublished, Counter()
        for key, value in counted.items():
            self._metric(*key).increment(value)
        self._show("tandem_requests_running", {}, running)
        self._show("tandem_requests_waiting", {}, waiting)
        for engine, calls in lost.items():
            self._show("tandem_lost_calls", {"engine": engine}, calls)

    def _show(self, name: str, labels: dict[str, str], value: int) -> None:
        """Set a gauge, if it changed: each setting is a trip to the server process."""
        key = (name, frozenset(labels.items()))
        if self._shown.get(key) != value:
            self._shown[key] = value
            self._metric(*key).set(value)

    def _metric(self, name: str, labels: Labels) -> Any:
        key = (name, labels)
        if key not in self._metrics:
            of_model = {"model": self._model, **dict(labels)}
            self._metrics[key] = self._families[name].Metric(labels=of_model)
        return self._metrics[key]


def _per_position(histogram: list[int]) -> list[int]:
    """How often the draft token at each position was accepted.

    >>> _per_position([5, 3, 2])  # 5 rounds accepted none, 3 one, 2 two
    [5, 2]
    """
    return [sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)]
