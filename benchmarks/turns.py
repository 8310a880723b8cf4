"""Measures variants alternately, so that noise affects all of them equally."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from rich.progress import track

from tandem.tools.benchmark.report import Spread

Variant = TypeVar("Variant")
Outcome = TypeVar("Outcome")


def in_turns(
    variants: Mapping[Variant, Callable[[int], Outcome]], turns: int, title: str = "turns"
) -> dict[Variant, list[Outcome]]:
    """Measure each variant once per turn, after a warm-up turn; return the outcomes by variant."""
    outcomes: dict[Variant, list[Outcome]] = {variant: [] for variant in variants}
    for turn in track(range(turns + 1), title, transient=True):
        for variant in list(variants)[:: 1 if turn % 2 else -1]:
            outcome = variants[variant](turn)
            if turn:
                outcomes[variant].append(outcome)
    return outcomes


def spread(values: Iterable[float]) -> str:
    """Format the median, with the 10th and 90th percentiles in parentheses."""
    found = Spread.of(values)
    assert found is not None
    if found.p10 == found.p90:
        return f"{found.median:.2f}"
    return f"{found.median:.2f} ({found.p10:.2f}-{found.p90:.2f})"
