"""Whether the emulated engines give the published throughputs.

    python -m benchmarks.published_rows

A sequential loop with 10 draft tokens and 1.0 ms of orchestration a round, in virtual time, beside
the throughputs that NVIDIA published for the same pairs. All times are emulated: the rows show that
the emulation is calibrated, not that anything is fast.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.simulation import Loop, SimulatedRun

HERE = Path(__file__).resolve().parent
PUBLISHED = json.loads((HERE / "published_rows.json").read_text())
ANSWERS = 200


class PublishedPair(NamedTuple):
    """A pair of the published table, and the profile that emulates it."""

    name: str
    profile: Path
    published: float  # tokens per second, drafting
    baseline: float  # the target alone


def rows() -> list[PublishedPair]:
    """Return each pair's profile, and behind it that of its text of easy and hard stretches."""
    found = []
    for name, facts in PUBLISHED["profiles"].items():
        pair = name.removeprefix("llama-3.1-").partition("/")[0].replace("+", "-")
        kinds = ["", "-two-state"] if facts["hard_alpha"] is not None else [""]
        for kind in kinds:
            profile = HERE.parent / "profiles" / f"emulated-{pair}{kind}.yaml"
            found.append(
                PublishedPair(name, profile, facts["published_tok_s"], facts["baseline_tok_s"])
            )
    return found


def run(row: PublishedPair, answers: int = ANSWERS) -> SimulatedRun:
    """Simulate a row."""
    loop = Loop(row.profile, orchestration_ms=PUBLISHED["orchestration_ms_assumed"])
    return loop.run(answers, draft_len=PUBLISHED["draft_len"])


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    table = Table(title="emulated engines, virtual time: 10 draft tokens, 1.0 ms orchestration")
    for heading in ("profile", "published tok/s", "emulated tok/s", "error", "tokens per round"):
        table.add_column(heading, justify="left" if heading == "profile" else "right")
    for row in rows():
        outcome = run(row)
        table.add_row(
            row.profile.stem,
            f"{row.published:.2f}",
            f"{outcome.tokens_per_second:.2f}",
            f"{outcome.tokens_per_second / row.published - 1:+.1%}",
            f"{outcome.tokens_per_round:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
