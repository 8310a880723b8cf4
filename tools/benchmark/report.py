"""Formats measurements as tables and as JSON."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from tandem.tools.benchmark.statistics import Latency, Measurement, Spread
from tandem.tools.client.answer import Answers

SPREAD = "10-90%"
NOTHING = "-"
LEGEND = (
    f"speedup: over drafter none, which runs in turn; {SPREAD}: range between these percentiles; "
    "ideal: the speedup if only engines took time; efficiency: speedup / ideal; acceptance: share "
    "of draft tokens that the target keeps; scaling: over one request at a time"
)


# A column's heading, and the function that formats a measurement's cell in it
Column: TypeAlias = tuple[str, Callable[[Measurement], str]]


@dataclass(frozen=True)
class Report:
    """All measurements of one run. served: the name of the server. settings: what was run."""

    served: str
    settings: dict[str, Any]
    rows: Sequence[Measurement]

    def tables(self) -> list[Table]:
        """Return a table of speeds per scenario, and one of latencies if answers were streamed.

        Empty columns are omitted.
        """
        tables = []
        for name in dict.fromkeys(row.scenario for row in self.rows):
            rows = [row for row in self.rows if row.scenario == name]
            tables.append(_table(f"{self.served}: {name}", SPEEDS, rows))
            if any(row.streamed for row in rows):
                tables.append(_table(f"{self.served}: {name}, streamed", LATENCIES, rows))
        return tables

    def differences(self) -> list[str]:
        return [
            f"{row.scenario}, concurrency {row.concurrency}, {row.variant}: "
            f"{row.num_different} outputs differ from the baseline's first"
            for row in self.rows
            if row.num_different
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "served": self.served,
            "machine": describe_machine(),
            "settings": self.settings,
            "rows": [_row(row) for row in self.rows],
        }


def _table(title: str, columns: Sequence[Column], rows: Sequence[Measurement]) -> Table:
    table = Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    shown = [
        (heading, cell)
        for heading, cell in columns
        if any(cell(row) not in ("", NOTHING) for row in rows)
    ]
    if all(row.concurrency == 1 for row in rows):
        shown.remove(AT_ONCE)
    for heading, _ in shown:
        justify: JustifyMethod = "left" if heading == "drafter" else "right"
        table.add_column(heading, justify=justify, vertical="bottom", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row) for _, cell in shown))
    return table


def _median(spread: Spread | None, style: str, scale: float = 1.0) -> str:
    return NOTHING if spread is None else format(spread.median * scale, style)


def _range(spread: Spread | None, style: str, scale: float = 1.0) -> str:
    if spread is None or spread.p10 == spread.p90:  # for example a single measurement
        return NOTHING
    return f"{spread.p10 * scale:{style}}-{spread.p90 * scale:{style}}"


def _milliseconds(latency: Latency | None, percentile: Literal["p50", "p99"]) -> str:
    return NOTHING if latency is None else f"{1000 * getattr(latency, percentile):.1f}"


def _unless_baseline(show: Callable[[Measurement], str]) -> Callable[[Measurement], str]:
    return lambda row: "" if row.variant.is_baseline else show(row)


AT_ONCE: Column = ("at\nonce", lambda row: str(row.concurrency))
VARIANT: tuple[Column, ...] = (
    AT_ONCE,
    ("drafter", lambda row: row.variant.drafter),
    ("draft\ntokens", lambda row: row.variant.length),
    ("ahead", lambda row: row.variant.draft_ahead or ""),
)
SPEEDS: tuple[Column, ...] = (
    *VARIANT,
    ("tokens/s", lambda row: _median(row.spread("tokens_per_second"), ".1f")),
    (SPREAD, lambda row: _range(row.spread("tokens_per_second"), ".0f")),
    ("speedup", _unless_baseline(lambda row: _median(row.speedup, ".2f"))),
    (SPREAD, _unless_baseline(lambda row: _range(row.speedup, ".2f"))),
    ("ideal", _unless_baseline(lambda row: _median(row.ideal_speedup, ".2f"))),
    ("efficiency", lambda row: _median(row.spread("efficiency"), ".3f")),
    (
        "orchestration\nms per round",
        lambda row: _median(row.spread("orchestration_seconds"), ".2f", 1e3),
    ),
    ("acceptance", lambda row: _median(row.spread("acceptance_rate"), ".1%")),
    ("tokens\nper round", lambda row: _median(row.spread("tokens_per_round"), ".2f")),
    ("scaling", lambda row: _median(row.scaling, ".2f")),
)
LATENCIES: tuple[Column, ...] = (
    *VARIANT,
    ("first token\nms", lambda row: _median(row.seconds_to_first_token, ".1f", 1e3)),
    (SPREAD, lambda row: _range(row.seconds_to_first_token, ".1f", 1e3)),
    ("inter-token\nms p50", lambda row: _milliseconds(row.inter_token_seconds, "p50")),
    ("p99", lambda row: _milliseconds(row.inter_token_seconds, "p99")),
    ("between chunks\nms p50", lambda row: _milliseconds(row.gap_seconds, "p50")),
    ("p99", lambda row: _milliseconds(row.gap_seconds, "p99")),
)


def _row(row: Measurement) -> dict[str, Any]:
    measured: dict[str, Spread | Latency | None] = {
        **{
            name: row.spread(name)
            for name in ("tokens_per_second", "efficiency", "acceptance_rate", "tokens_per_round")
        },
        "speedup": row.speedup,
        "ideal_speedup": row.ideal_speedup,
        "scaling": row.scaling,
        "seconds_to_first_token": row.seconds_to_first_token,
        "orchestration_seconds_per_round": row.spread("orchestration_seconds"),
        "inter_token_seconds": row.inter_token_seconds,
        "gap_seconds": row.gap_seconds,
    }
    return {
        "scenario": row.scenario,
        "num_streams": row.concurrency,
        **asdict(row.variant),
        "num_draft_tokens": row.variant.length,
        **{name: value and value._asdict() for name, value in measured.items()},
        "num_different": row.num_different,
        "repetitions": [_repetition(repetition) for repetition in row.whole],
        "streamed_repetitions": [_repetition(repetition) for repetition in row.streamed],
    }


def _repetition(repetition: Answers) -> dict[str, Any]:
    return {
        "num_answers": len(repetition.answers),
        "num_tokens": repetition.num_tokens,
        **repetition.totals._asdict(),
        "elapsed_seconds": repetition.elapsed_seconds,
        "seconds": repetition.seconds,
        "engine_seconds": repetition.engine_seconds,
    }


def describe_machine() -> dict[str, Any]:
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "gpus": _gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    question = [program, "--query-gpu=name", "--format=csv,noheader"]
    answered = subprocess.run(question, capture_output=True, text=True, check=False)
    return answered.stdout.splitlines() if answered.returncode == 0 else []
