"""Measurements as a table, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from tandem.tools.benchmark.machine import describe_machine
from tandem.tools.benchmark.statistics import HIGH, LOW, Figures, Spread
from tandem.tools.benchmark.trace import Repetition
from tandem.tools.errors import TandemError

SPREAD = f"{LOW}-{HIGH}%"
NOTHING = "-"


class Column(NamedTuple):
    """A heading, and what a row shows under it."""

    heading: str
    cell: Callable[[Figures], str]
    left: bool = False


@dataclass(frozen=True)
class Report:
    """Everything that was measured in one run.

    served: what was measured, in words. settings: what it was measured with.
    """

    served: str
    settings: dict[str, Any]
    rows: Sequence[Figures]

    def tables(self) -> list[Table]:
        """Return a table of speeds for each scenario, and one of latencies where it was streamed.

        Columns that would be empty are left out.
        """
        tables = []
        for name in dict.fromkeys(row.cell.scenario for row in self.rows):
            rows = [row for row in self.rows if row.cell.scenario == name]
            tables.append(_table(f"{self.served}: {name}", SPEEDS, rows))
            if any(row.cell.streamed for row in rows):
                tables.append(_table(f"{self.served}: {name}, streamed", LATENCIES, rows))
        return tables

    def differences(self) -> list[str]:
        """Say which ways gave other texts than the control, one line each."""
        return [
            f"{row.cell.scenario}, {row.cell.num_streams} at once, {row.cell.way}: "
            f"{row.num_different} answers differ from the control's first"
            for row in self.rows
            if row.num_different
        ]

    def write(self, path: Path) -> None:
        """Write everything as JSON; raise TandemError where that cannot be."""
        try:
            path.write_text(json.dumps(self.as_json(), indent=2) + "\n")
        except OSError as error:
            raise TandemError(f"cannot write {path}: {error.strerror}") from error

    def as_json(self) -> dict[str, Any]:
        """Return the figures, every repetition that they come from, and the machine."""
        return {
            "served": self.served,
            "machine": describe_machine(),
            "settings": self.settings,
            "rows": [_row(figures) for figures in self.rows],
        }


def _table(title: str, columns: Sequence[Column], rows: Sequence[Figures]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    shown = [c for c in columns if any(c.cell(row) not in ("", NOTHING) for row in rows)]
    if all(row.cell.num_streams == 1 for row in rows):
        shown.remove(AT_ONCE)
    for column in shown:
        table.add_column(
            column.heading, justify="left" if column.left else "right", vertical="bottom"
        )
    for row in rows:
        table.add_row(*(column.cell(row) for column in shown))
    return table


def _median(spread: Spread | None, style: str, scale: float = 1.0) -> str:
    return NOTHING if spread is None else format(spread.median * scale, style)


def _range(spread: Spread | None, style: str, scale: float = 1.0) -> str:
    if spread is None:
        return NOTHING
    return f"{spread.low * scale:{style}}-{spread.high * scale:{style}}"


def _milliseconds(figures: tuple[float, float] | None, which: int) -> str:
    return NOTHING if figures is None else f"{1000 * figures[which]:.1f}"


def _of_drafts(show: Callable[[Figures], str]) -> Callable[[Figures], str]:
    """What says nothing of the control."""
    return lambda row: "" if row.cell.way.is_control else show(row)


AT_ONCE = Column("at\nonce", lambda row: str(row.cell.num_streams))
WAY = (
    AT_ONCE,
    Column("drafter", lambda row: row.cell.way.drafter, left=True),
    Column("draft\ntokens", lambda row: row.cell.way.length),
    Column("n-gram", lambda row: str(row.cell.way.ngram_size or "")),
)
SPEEDS = (
    *WAY,
    Column("tokens/s", lambda row: _median(row.tokens_per_second, ".1f")),
    Column(SPREAD, lambda row: _range(row.tokens_per_second, ".0f")),
    Column("speedup", _of_drafts(lambda row: _median(row.speedup, ".2f"))),
    Column(SPREAD, _of_drafts(lambda row: _range(row.speedup, ".2f"))),
    Column("ideal", _of_drafts(lambda row: _median(row.ideal_speedup, ".2f"))),
    Column("efficiency", lambda row: _median(row.efficiency, ".3f")),
    Column("orchestration\nms a round", lambda row: _median(row.orchestration_seconds, ".2f", 1e3)),
    Column("acceptance", lambda row: _median(row.acceptance_rate, ".1%")),
    Column("tokens\nper round", lambda row: _median(row.tokens_per_round, ".2f")),
    Column("scaling", lambda row: _median(row.scaling, ".2f")),
)
LATENCIES = (
    *WAY,
    Column("first token\nms", lambda row: _median(row.seconds_to_first_token, ".1f", 1e3)),
    Column(SPREAD, lambda row: _range(row.seconds_to_first_token, ".1f", 1e3)),
    Column("inter-token\nms p50", lambda row: _milliseconds(row.inter_token_seconds, 0)),
    Column("p99", lambda row: _milliseconds(row.inter_token_seconds, 1)),
    Column("between chunks\nms p50", lambda row: _milliseconds(row.gap_seconds, 0)),
    Column("p99", lambda row: _milliseconds(row.gap_seconds, 1)),
)


def _row(figures: Figures) -> dict[str, Any]:
    cell = figures.cell
    spreads = {
        "tokens_per_second": figures.tokens_per_second,
        "speedup": figures.speedup,
        "ideal_speedup": figures.ideal_speedup,
        "efficiency": figures.efficiency,
        "orchestration_seconds_per_round": figures.orchestration_seconds,
        "acceptance_rate": figures.acceptance_rate,
        "tokens_per_round": figures.tokens_per_round,
        "scaling": figures.scaling,
        "seconds_to_first_token": figures.seconds_to_first_token,
    }
    percentiles = {
        "inter_token_seconds": figures.inter_token_seconds,
        "gap_seconds": figures.gap_seconds,
    }
    return {
        "scenario": cell.scenario,
        "num_streams": cell.num_streams,
        **asdict(cell.way),
        "num_draft_tokens": cell.way.length,
        **{name: spread and _spread(spread) for name, spread in spreads.items()},
        **{
            name: found and dict(zip(("p50", "p99"), found, strict=True))
            for name, found in percentiles.items()
        },
        "num_different": figures.num_different,
        "repetitions": [_repetition(repetition) for repetition in cell.whole],
        "streamed_repetitions": [_repetition(repetition) for repetition in cell.streamed],
    }


def _spread(spread: Spread) -> dict[str, float]:
    return {"median": spread.median, f"p{LOW}": spread.low, f"p{HIGH}": spread.high}


def _repetition(repetition: Repetition) -> dict[str, Any]:
    return {
        "num_answers": len(repetition.traces),
        "num_tokens": repetition.num_tokens,
        "num_rounds": repetition.num_rounds,
        "num_draft_tokens": repetition.num_draft_tokens,
        "num_accepted_tokens": sum(t.num_accepted_tokens for t in repetition.traces),
        "elapsed_seconds": repetition.elapsed_seconds,
        "seconds": repetition.seconds,
        "engine_seconds": repetition.engine_seconds,
    }
