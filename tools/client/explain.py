"""What happened in each round of an answer, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

COLUMNS = (
    *("#", "drafter", "ahead", "asked", "stop", "drafted", "accepted"),
    *("draft ms", "target ms"),
)


def explanation(statistics: Mapping[str, Any]) -> Table:
    """Return a row a round; ``statistics`` is an answer's `spec_decode_statistics`.

    plain: tokens that the target generated alone. ahead: branches that were drafted for the round
    while the one before was verified; with a star one of them was its draft. asked, stop: the
    length that was chosen, and the probability at which the draft model was told to stop by itself.
    Times are the engines' own.
    """
    table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))  # within 80 columns
    for column in table.columns:
        column.justify = "left" if column.header == "drafter" else "right"
    for number, figures in enumerate(statistics["rounds"], start=1):
        table.add_row(str(number), *_cells(figures))
    return table


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    target = f"{1000 * figures['target_seconds']:.1f}"
    if figures["num_plain_tokens"]:
        alone = f"none: {figures['num_plain_tokens']} plain"
        return (alone, "", "", "", "", "", "", target)
    stop = figures["stop_probability"]
    return (
        figures["drafter"],
        _ahead(figures),
        str(figures["planned_tokens"] or figures["num_draft_tokens"]),
        f"{stop:g}" if stop else "",
        str(figures["num_draft_tokens"]),
        str(figures["num_accepted_tokens"]),
        f"{1000 * figures['draft_seconds']:.1f}",
        target,
    )


def _ahead(figures: Mapping[str, Any]) -> str:
    branches = figures["num_branches"]
    return f"{branches}{'*' if figures['drafted_ahead'] else ''}" if branches else ""
