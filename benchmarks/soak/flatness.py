"""Whether what a server holds stays as it is once it has warmed up.

The first quarter of the samples is warm-up. Of the rest, the median of the last third may be above
that of the first third by a limit: for memory a twentieth and some megabytes (allocators keep what
a busy moment took), for threads and descriptors a few.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.soak.processes import Sample

MEMORY_SHARE, MEMORY_MB = 0.05, 12.0
SHARED_MB = 2.0
FEW = 8


class Course(NamedTuple):
    """How something went: medians after the warm-up and at the end, and what may lie between."""

    name: str
    warm: float
    end: float
    allowed: float

    @property
    def flat(self) -> bool:
        """Whether it did not grow."""
        return self.end - self.warm <= self.allowed


def courses(samples: Sequence[Sample]) -> Iterator[Course]:
    """The course of everything that was measured."""
    for owner in samples[0].memory_mb:
        yield _course(f"{owner}: memory, MB", samples, lambda s, o=owner: s.memory_mb[o], _memory)
    for owner in samples[0].threads:
        yield _course(f"{owner}: threads", samples, lambda s, o=owner: s.threads[o], _few)
    for owner in samples[0].descriptors:
        yield _course(f"{owner}: descriptors", samples, lambda s, o=owner: s.descriptors[o], _few)
    yield _course("shared memory, MB", samples, lambda s: s.shared_mb, lambda _: SHARED_MB)


def _course(
    name: str,
    samples: Sequence[Sample],
    value: Callable[[Sample], float],
    allowed: Callable[[float], float],
) -> Course:
    values = [value(sample) for sample in samples[len(samples) // 4 :]]
    third = max(1, len(values) // 3)
    warm, end = statistics.median(values[:third]), statistics.median(values[-third:])
    return Course(name, warm, end, allowed(warm))


def _memory(warm: float) -> float:
    return MEMORY_SHARE * warm + MEMORY_MB


def _few(_: float) -> float:
    return FEW
