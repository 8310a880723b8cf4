"""The loop's figures on Triton's ``/metrics``; speculation's are named as vLLM's, unprefixed."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from bls.settings import DrafterName
from bls.statistics import Statistics


class Metrics:
    """Counters and gauges of one model. Requests are counted when they end."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._families = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=kind)
            for name, text, kind in (
                ("spec_decode_num_drafts_total", "Rounds with draft tokens", _COUNTER),
                ("spec_decode_num_draft_tokens_total", "Draft tokens proposed", _COUNTER),
                ("spec_decode_num_accepted_tokens_total", "Draft tokens accepted", _COUNTER),
                (
                    "spec_decode_num_accepted_tokens_per_pos_total",
                    "Draft tokens accepted, by position in the draft",
                    _COUNTER,
                ),
                ("tandem_drafter_failures_total", "Draft calls that failed", _COUNTER),
                (
                    "tandem_recomputed_tokens_total",
                    "Context tokens computed again because their KV blocks were evicted",
                    _COUNTER,
                ),
                ("tandem_requests_running", "Sequences decoding now", _GAUGE),
                ("tandem_requests_waiting", "Sequences waiting for room", _GAUGE),
                ("tandem_lost_calls", "Engine calls given up without an answer", _GAUGE),
            )
        }
        self._metrics: dict[tuple[tuple[str, str], ...], Any] = {}

    def count(self, drafter: DrafterName, statistics: Statistics) -> None:
        """Add one ended sequence."""
        labels: dict[str, str] = {"drafter": drafter}
        self._add("spec_decode_num_drafts_total", statistics.num_spec_steps, labels)
        self._add("spec_decode_num_draft_tokens_total", statistics.num_draft_tokens, labels)
        accepted = statistics.num_accepted_draft_tokens
        self._add("spec_decode_num_accepted_tokens_total", accepted, labels)
        for position, count in enumerate(_per_position(statistics.acceptance_histogram)):
            at = labels | {"position": str(position)}
            self._add("spec_decode_num_accepted_tokens_per_pos_total", count, at)
        self._add("tandem_drafter_failures_total", statistics.num_drafter_failures, labels)
        self._add("tandem_recomputed_tokens_total", statistics.num_recomputed_tokens, {})

    def set_load(self, running: int, waiting: int) -> None:
        """Show how many sequences run and wait."""
        self._metric("tandem_requests_running", {}).set(running)
        self._metric("tandem_requests_waiting", {}).set(waiting)

    def set_lost(self, lost_by_model: dict[str, int]) -> None:
        """Show how many calls each engine has left without an answer."""
        for engine, lost in lost_by_model.items():
            self._metric("tandem_lost_calls", {"engine": engine}).set(lost)

    def _add(self, name: str, value: int, labels: dict[str, str]) -> None:
        if value:
            self._metric(name, labels).increment(value)

    def _metric(self, name: str, labels: dict[str, str]) -> Any:
        key = (("", name), *sorted(labels.items()))
        if key not in self._metrics:
            family = self._families[name]
            self._metrics[key] = family.Metric(labels={"model": self._model, **labels})
        return self._metrics[key]


def _per_position(histogram: list[int]) -> list[int]:
    """How often the draft token at each position was accepted.

    >>> _per_position([5, 3, 2])  # 5 rounds accepted none, 3 one, 2 two
    [5, 2]
    """
    return [sum(histogram[position + 1 :]) for position in range(len(histogram) - 1)]


_COUNTER = pb_utils.MetricFamily.COUNTER
_GAUGE = pb_utils.MetricFamily.GAUGE
