"""Triton's /metrics, read as a person would."""

import re
import time
import urllib.request

PARTS = ("draft", "target", "orchestration")


def scrape(server):
    """Every sample: (name, labels) -> value."""
    with urllib.request.urlopen(server.metrics_url) as response:
        text = response.read().decode()
    samples = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+)(?:{(.*)})? (\S+)", line):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            samples[match[1], frozenset(labels.items())] = float(match[3])
    return samples


def total(server, name, **labels):
    """The sum of a metric's samples that carry these labels."""
    return sum(
        value
        for (sample, theirs), value in scrape(server).items()
        if sample == name and labels.items() <= dict(theirs).items()
    )


def computed_so_far(server, model="target"):
    """Tokens that went through a model, as published; engines do that ten times a second."""
    return total(server, "tandem_engine_computed_tokens_total", model=model)


def computed(server, model="target", at_least=0):
    """Tokens that went through a model, once it is at rest."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        before = computed_so_far(server, model)
        time.sleep(0.25)
        if computed_so_far(server, model) == before >= at_least:
            return before
    raise AssertionError("the engine never comes to rest")


def until(condition):
    """Wait for what is published a moment after the answer."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Change:
    """What the loop's figures grew by since."""

    def __init__(self, server):
        self._server = server
        self._before = self._settled()

    def until_ended(self, sequences):
        """Wait until so many sequences are counted; figures follow an answer within moments."""
        until(lambda: self._ended(scrape(self._server)) - self._ended(self._before) == sequences)
        self._after = self._settled()

    def of(self, name, **labels):
        return self._sum(self._after, name, labels) - self._sum(self._before, name, labels)

    def parts(self, name="tandem_round_part_seconds_total", **labels):
        return {part: self.of(name, part=part, **labels) for part in PARTS}

    def _ended(self, samples):
        return self._sum(samples, "tandem_round_seconds_count", {})

    def _settled(self):
        """The samples once nobody is at work and earlier requests are counted."""
        read = [{}]

        def at_rest():
            read.append(scrape(self._server))
            return len(read) > 5 and all(samples == read[-1] for samples in read[-5:])

        until(lambda: total(self._server, "tandem_requests_running") == 0)
        until(at_rest)
        return read[-1]

    @staticmethod
    def _sum(samples, name, labels):
        wanted = {"model": "bls_stream", **labels}.items()
        return sum(
            value
            for (sample, theirs), value in samples.items()
            if sample == name and wanted <= dict(theirs).items()
        )
