"""Checks that a server's memory, file descriptors and threads don't grow after warm-up."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.soak.asking import STREAM
from benchmarks.soak.processes import Sample

MEMORY_SHARE, MEMORY_MB = 0.05, 12.0
SHARED_MB = 2.0
FEW = 8


class Growth(NamedTuple):
    """The growth of a quantity: its first and last values, and the allowed growth."""

    name: str
    first: float
    end: float
    allowed: float

    @property
    def growth(self) -> float:
        return self.end - self.first

    @property
    def flat(self) -> bool:
        """Whether the growth is within the limit."""
        return self.growth <= self.allowed


def measure_growth(samples: Sequence[Sample]) -> Iterator[Growth]:
    """Yield the growth of memory and descriptors of each model, and of shared memory."""
    samples = samples[len(samples) // 4 :]
    for owner in samples[0].memory_mb:
        memory = [sample.memory_mb[owner] for sample in samples]
        yield _growth(f"{owner}: memory, MB", memory, MEMORY_MB, MEMORY_SHARE)
    for owner in samples[0].descriptors:
        descriptors = [sample.descriptors[owner] for sample in samples]
        yield _growth(f"{owner}: descriptors", descriptors, FEW)
    yield _growth("shared memory, MB", [sample.shared_mb for sample in samples], SHARED_MB)


def threads_at_rest(before: Sample, after: Sample) -> Iterator[Growth]:
    """Yield the growth of each model's threads. Each lost call blocks one thread of the loop."""
    lost = sum(after.lost.values()) - sum(before.lost.values())
    for owner, count in before.threads.items():
        allowed = FEW + lost if owner == STREAM else FEW
        yield Growth(f"{owner}: threads at rest", count, after.threads.get(owner, 0), allowed)


def _growth(name: str, values: Sequence[float], allowed: float, share: float = 0.0) -> Growth:
    """Compare the first and the last third of the values.

    allowed, share: the allowed growth, absolute and as a share of the first value; both are added.
    """
    third = max(1, len(values) // 3)
    first, end = statistics.median(values[:third]), statistics.median(values[-third:])
    return Growth(name, first, end, allowed + share * first)
