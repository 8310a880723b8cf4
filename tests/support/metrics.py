"""Triton's /metrics, read as a person would."""

import re
import time
import urllib.error
import urllib.request


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


def until(condition):
    """Wait for what is published a moment after the answer."""
    deadline = time.monotonic() + 10
    while not holds(condition):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def holds(condition):
    try:
        return condition()
    except urllib.error.URLError:  # Triton opens /metrics milliseconds after it calls itself ready
        return False
