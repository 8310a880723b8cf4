"""What a gateway counts, in Prometheus' text format; each gateway counts for itself."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tandem.gateway.objects import SpeculativeDecoding

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """A counter, by the values of its labels."""

    kind = "counter"

    def __init__(self, name: str, help_: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help_
        self._labels = labels
        self._values: defaultdict[tuple[str, ...], int] = defaultdict(int)
        if not labels:
            self._values[()] = 0

    def add(self, number: int, *labels: object) -> None:
        """Count."""
        self._values[tuple(map(str, labels))] += number

    def lines(self) -> Iterator[str]:
        """Yield a line a series."""
        for values, number in sorted(self._values.items()):
            yield f"{self.name}{_labels(self._labels, values)} {number}"


class Gauge(Counter):
    """A number that goes up and down."""

    kind = "gauge"


class Histogram:
    """How often something took how many seconds."""

    kind = "histogram"

    def __init__(self, name: str, help_: str) -> None:
        self.name = name
        self.help = help_
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self) -> Iterator[str]:
        """Yield a line a bucket, the sum and the count."""
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{le="{bound}"}} {total}'
        yield f"{self.name}_sum {self._sum}"
        yield f"{self.name}_count {total}"


class GatewayMetrics:
    """The metrics of one gateway. Those of speculation have vLLM's names, one series each."""

    def __init__(self) -> None:
        self.requests = Counter(
            "tandem_gateway_requests_total", "Requests answered.", ("endpoint", "status")
        )
        self.running = Gauge("tandem_gateway_requests_running", "Requests being answered.")
        self.prompt_tokens = Counter("vllm:prompt_tokens_total", "Prompt tokens.")
        self.generation_tokens = Counter("vllm:generation_tokens_total", "Tokens of answers.")
        self.first_token = Histogram(
            "vllm:time_to_first_token_seconds", "From a request to the first chunk of its stream."
        )
        self.latency = Histogram(
            "vllm:e2e_request_latency_seconds", "From a request to the end of its answer."
        )
        self._drafts = Counter("vllm:spec_decode_num_drafts_total", "Rounds with draft tokens.")
        self._draft_tokens = Counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens.")
        self._accepted = Counter(
            "vllm:spec_decode_num_accepted_tokens_total", "Accepted draft tokens."
        )
        self._per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "Accepted draft tokens by their place in the draft.",
            ("position",),
        )

    def count(self, earned: SpeculativeDecoding) -> None:
        """Count what speculation did for a request."""
        self._drafts.add(earned.num_spec_steps)
        self._draft_tokens.add(earned.num_draft_tokens)
        self._accepted.add(earned.num_accepted_draft_tokens)
        for position in range(len(earned.acceptance_histogram) - 1):
            reached = sum(earned.acceptance_histogram[position + 1 :])
            self._per_position.add(reached, position)

    def text(self) -> str:
        """Return what Prometheus reads."""
        lines: list[str] = []
        for metric in vars(self).values():
            lines.append(f"# HELP {metric.name} {metric.help}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines.extend(metric.lines())
        return "\n".join(lines) + "\n"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""
