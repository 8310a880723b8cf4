"""Reads metrics from a live server."""

from benchmarks.soak.processes import is_at_rest, read_metrics
from entries import streaming
from live_triton import eventually

PARTS = ("draft", "target", "orchestration")


def scrape(server):
    """Return all samples: (name, labels) -> value."""
    return {(one.name, frozenset(one.labels.items())): one.value for one in read_metrics(server)}


def total(server, name, **labels):
    """Return the sum of a metric's samples with these labels."""
    return sum(
        one.value
        for one in read_metrics(server, (name,))
        if one.name == name and labels.items() <= one.labels.items()
    )


def settle(server, drafter="none"):
    """Wait until all earlier requests are counted and no requests are running.

    The published gauges may be older than the last request. So this function sends its own request
    and waits until the gauges show its start and end. That is enough, because sequences are counted
    before they end, and counters are published before gauges. This request also increases the
    counters, so call `settle` before you read initial values.
    """
    assert eventually(lambda: is_at_rest(server))
    assert eventually(lambda: _seen_at_work(server, drafter))
    assert eventually(lambda: is_at_rest(server))


def _seen_at_work(server, drafter):
    values = {"max_tokens": 100, "end_id": -1, "drafter": drafter}
    with streaming(server, "x", **values) as chunks:
        return any(not is_at_rest(server) for _ in chunks)  # exiting the context ends the request


def computed_so_far(server, model="target"):
    """Return the published number of tokens that a model has computed.

    The server publishes this number ten times per second.
    """
    return total(server, "tandem_engine_computed_tokens_total", model=model)


def computed(server, model="target", at_least=0):
    """Return the number of tokens that a model has computed, after it stops changing."""
    counts = []

    def is_stable():
        counts.append(computed_so_far(server, model))
        return counts[-1] >= at_least and counts.count(counts[-1]) > 15

    assert eventually(is_stable)
    return counts[-1]


class Change:
    """The growth of the loop's metrics since this object was created.

    Only the test that uses it may send requests.
    """

    def __init__(self, server, drafter="none"):
        self._server = server
        settle(server, drafter)
        self._before = scrape(server)

    def until_ended(self, sequences):
        """Wait until this number of new sequences with tokens is counted."""
        assert eventually(
            lambda: self._ended(scrape(self._server)) - self._ended(self._before) == sequences
        )
        self._after = scrape(self._server)

    def of(self, name, **labels):
        return self._sum(self._after, name, labels) - self._sum(self._before, name, labels)

    def parts(self, name="tandem_round_part_seconds_total", **labels):
        return {part: self.of(name, part=part, **labels) for part in PARTS}

    def _ended(self, samples):
        """Return the number of counted sequences, which is published last."""
        return self._sum(samples, "tandem_round_part_seconds_count", {"part": "orchestration"})

    @staticmethod
    def _sum(samples, name, labels):
        wanted = {"model": "bls_stream", **labels}.items()
        return sum(
            value
            for (sample, theirs), value in samples.items()
            if sample == name and wanted <= dict(theirs).items()
        )
