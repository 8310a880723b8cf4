"""Shows each round of an answer in a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

COLUMNS = (
    *("#", "drafter", "ahead", "asked", "stop", "drafted", "accepted"),
    *("draft ms", "target ms"),
)

LEGEND = (
    "asked: draft length that the loop requested; stop: probability below which the draft ends "
    "early; ahead: branches drafted during the last verification, *: one was used"
)


def explanation(statistics: Mapping[str, Any]) -> Table:
    """Return a table with one row per round.

    statistics: the `spec_decode_statistics` of an answer.

    Columns: *ahead* is the number of branches that were drafted during the previous verification,
    with a star if the round used one of them. *asked* is the draft length that the loop requested.
    *stop* is the probability below which the draft model ends its draft early. Times are measured
    by the engines. A round without a draft shows how many plain tokens the target generated alone.
    """
    table = Table(*COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))  # within 80 columns
    for column in table.columns:
        column.justify = "left" if column.header == "drafter" else "right"
    for number, round_ in enumerate(statistics["rounds"], start=1):
        table.add_row(str(number), *_cells(round_))
    return table


def _cells(round_: Mapping[str, Any]) -> tuple[str, ...]:
    target = f"{1000 * round_['target_seconds']:.1f}"
    if round_["num_plain_tokens"]:
        alone = f"none: {round_['num_plain_tokens']} plain"
        return (alone, "", "", "", "", "", "", target)
    stop, branches = round_["stop_probability"], round_["num_branches"]
    return (
        round_["drafter"],
        f"{branches}{'*' if round_['drafted_ahead'] else ''}" if branches else "",
        str(round_["planned_tokens"] or round_["num_draft_tokens"]),
        f"{stop:g}" if stop else "",
        str(round_["num_draft_tokens"]),
        str(round_["num_accepted_tokens"]),
        f"{1000 * round_['draft_seconds']:.1f}",
        target,
    )
