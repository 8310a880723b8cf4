"""Medians and spreads of measurements, formatted as tables and as JSON."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from tandem.tools.benchmark.variant import Variant
from tandem.tools.client.answer import Answer, Answers


class Spread(NamedTuple):
    """The median of repeated measurements, and their 10th and 90th percentiles."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        found = [value for value in values if value is not None]
        if not found:
            return None
        median, p10, p90 = np.percentile(found, [50, 10, 90])
        return cls(float(median), float(p10), float(p90))


class Latency(NamedTuple):
    """The median and the 99th percentile of a latency in seconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency | None:
        return cls(*map(float, np.percentile(values, [50, 99]))) if values else None


@dataclass(eq=False)
class Measurement:
    """The results of one variant in one scenario with one number of concurrent requests.

    Repetition i of every measurement of a scenario ran under the same conditions, so they can be
    compared. Times are in seconds; None means not measured or undefined.

    baseline: the target alone with the same scenario and concurrency; None if this is the baseline.
    alone: the same variant without concurrent requests. whole: repetitions whose answers arrived in
    one response. streamed: repetitions with streamed answers.
    """

    scenario: str
    concurrency: int
    variant: Variant
    baseline: Measurement | None = None
    alone: Measurement | None = None
    whole: list[Answers] = field(default_factory=list)
    streamed: list[Answers] = field(default_factory=list)

    def spread(self, name: str) -> Spread | None:
        """Return the spread of a property of `Answers` over all repetitions."""
        return Spread.of(getattr(repetition, name) for repetition in self.whole)

    @property
    def speedup(self) -> Spread | None:
        """Tokens per second relative to the baseline in the same repetition."""
        return Spread.of(self._relative_to(self.baseline or self))

    @property
    def ideal_speedup(self) -> Spread | None:
        """The speedup if an answer took only the engines' time.

        The baseline keeps its own overhead, so a slow baseline can't make the loop look better.
        """
        speedups = self._relative_to(self.baseline or self)
        pairs = zip(speedups, [r.efficiency for r in self.whole], strict=True)
        return Spread.of(s / e if s and e else None for s, e in pairs)

    @property
    def scaling(self) -> Spread | None:
        """Tokens per second relative to one stream in the same repetition."""
        return Spread.of(self._relative_to(self.alone)) if self.alone else None

    @property
    def seconds_to_first_token(self) -> Spread | None:
        return Spread.of(answer.seconds_to_first_token for answer in self._streamed)

    @property
    def inter_token_seconds(self) -> Latency | None:
        """The time per token, over all streamed answers."""
        return Latency.of([s for answer in self._streamed for s in answer.inter_token_seconds])

    @property
    def gap_seconds(self) -> Latency | None:
        """The time between chunks, over all streamed answers."""
        return Latency.of([s for answer in self._streamed for s in answer.gap_seconds])

    @property
    def num_different(self) -> int:
        """Number of answers that differ from the baseline's first answer to the same prompt."""
        wanted: dict[int, str] = {}
        for answer in _answers((self.baseline or self).whole):
            wanted.setdefault(answer.prompt, answer.text)
        found = [*_answers(self.whole), *self._streamed]
        return sum(answer.text != wanted.get(answer.prompt) for answer in found)

    def _relative_to(self, other: Measurement) -> list[float | None]:
        """Return the ratio of tokens per second in each repetition."""
        return [
            ours.tokens_per_second / theirs.tokens_per_second if theirs.num_tokens else None
            for ours, theirs in zip(self.whole, other.whole, strict=True)
        ]

    @property
    def _streamed(self) -> list[Answer]:
        return _answers(self.streamed)


def _answers(repetitions: Iterable[Answers]) -> list[Answer]:
    return [answer for repetition in repetitions for answer in repetition.answers]


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

    def costs(self) -> list[Table]:
        """Return a table per load of what `auto` has measured there by the end of the run."""
        measured = {}
        for row in self.rows:
            for answer in _answers(row.whole) * row.variant.learns:
                if auto := (answer.statistics or {}).get("auto"):
                    measured[row.variant.drafter, auto["load"]] = auto
        return [_costs(drafter, auto) for (drafter, _), auto in measured.items()]

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


def _costs(drafter: str, auto: Mapping[str, Any]) -> Table:
    """Return what `auto` has measured at one load. auto: see `spec_decode_statistics`."""
    table = _empty_table(f"what {drafter} auto has measured with {auto['load']} at once")
    for heading in ("draft\ntokens", "ms\nper round", "tokens\nper round", "tokens/s"):
        table.add_column(heading, justify="right")
    plain = {"num_tokens": "none", "ms": auto["plain_ms_per_token"], "tokens_per_round": 1}
    for draft in (plain, *auto["drafts"]):
        ms, tokens = draft["ms"], draft["tokens_per_round"]
        cells = (f"{ms:.1f}", f"{tokens:.2f}", f"{1000 * tokens / ms:.0f}")
        table.add_row(str(draft["num_tokens"]), *cells)
    return table


def _empty_table(title: str) -> Table:
    return Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )


def _table(title: str, columns: Sequence[Column], rows: Sequence[Measurement]) -> Table:
    table = _empty_table(title)
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
