"""The declaration of a Prometheus metric."""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


class Metric(str):
    """A metric's name with its kind and help text. Being a ``str``, it can be used as the name.

    buckets: upper bounds of a histogram in seconds.
    """

    kind: Kind
    help: str
    buckets: tuple[float, ...]

    def __new__(cls, name: str, kind: Kind, help_: str, buckets: tuple[float, ...] = ()) -> Metric:
        metric = super().__new__(cls, name)
        metric.kind = kind
        metric.help = help_
        metric.buckets = buckets
        return metric


class MetricList(list[Metric]):
    """The metrics of one program."""

    def counter(self, name: str, help_: str) -> Metric:
        return self._add(Metric(name, "counter", help_))

    def gauge(self, name: str, help_: str) -> Metric:
        return self._add(Metric(name, "gauge", help_))

    def histogram(self, name: str, help_: str, buckets: tuple[float, ...]) -> Metric:
        return self._add(Metric(name, "histogram", help_, buckets))

    def _add(self, metric: Metric) -> Metric:
        self.append(metric)
        return metric
