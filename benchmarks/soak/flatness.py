"""Checks that a server's memory, file descriptors and threads don't grow after warm-up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.soak.asking import STREAM
from benchmarks.soak.processes import Sample

MEMORY_SHARE, MEMORY_MB = 0.05, 12.0
SHARED_MB = 2.0
FEW = 8


class Course(NamedTuple):
    """The growth of a quantity: its first and last values, and the allowed growth."""

    name: str
    first: float
    end: float
    allowed: float

    @property
    def growth(self) -> float:
        """The last value minus the first value."""
        return self.end - self.first

    @property
    def flat(self) -> bool:
        """Whether the growth is within the limit."""
        return self.growth <= self.allowed


def courses(samples: Sequence[Sample]) -> Iterator[Course]:
    """Yield the growth of memory and descriptors of each model, and of shared memory."""
    for owner in samples[0].memory_mb:
        yield _course(f"{owner}: memory, MB", samples, lambda s, o=owner: s.memory_mb[o], _memory)
    for owner in samples[0].descriptors:
        yield _course(f"{owner}: descriptors", samples, lambda s, o=owner: s.descriptors[o], _few)
    yield _course("shared memory, MB", samples, lambda s: s.shared_mb, lambda _: SHARED_MB)


def threads_at_rest(before: Sample, after: Sample) -> Iterator[Course]:
    """Yield the growth of each model's threads. Each lost call blocks one thread of the loop."""
    lost = sum(after.lost.values()) - sum(before.lost.values())
    for owner, count in before.threads.items():
        allowed = FEW + lost if owner == STREAM else FEW
        yield Course(f"{owner}: threads at rest", count, after.threads.get(owner, 0), allowed)


def _course(
    name: str,
    samples: Sequence[Sample],
    value: Callable[[Sample], float],
    allowed: Callable[[float], float],
) -> Course:
    values = [value(sample) for sample in samples[len(samples) // 4 :]]
    third = max(1, len(values) // 3)
    first, end = statistics.median(values[:third]), statistics.median(values[-third:])
    return Course(name, first, end, allowed(first))


def _memory(first: float) -> float:
    return MEMORY_SHARE * first + MEMORY_MB


def _few(_: float) -> float:
    return FEW
