"""What the loop costs a round, beside loops that do nothing but call the engines.

    python -m benchmarks.orchestration
    python -m benchmarks.orchestration --profile profiles/emulated-70b-1b.yaml --rounds 40

All run in one server, over emulated engines, in turns. A round's cost is its time less the engines'
own, by their clocks. The second table follows the calls of the bare loops through the processes.
Where the profile emulates a published pair, the last column is the throughput that the pair would
have with this loop.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tritonclient import grpc

from benchmarks import bare, published_rows, rounds
from benchmarks.simulation import Loop
from tandem.tools.client.client import Client
from tandem.tools.profiles import deployment
from tandem.tools.profiles.profile import AdmissionSection, read_profile
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-zero.yaml"
CONTEXTS, TOKENS_A_ROUND = (64, 2048), 5
FEW = AdmissionSection(max_requests=4, max_queue=4)  # idle threads of the server cost a round more


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of emulated engines")
    parser.add_argument("--rounds", type=int, default=200, help="of each loop in a turn")
    parser.add_argument("--turns", type=int, default=25, help="of all loops")
    parser.add_argument("--threads", type=int, help="Triton's for each model; few when left out")
    options = parser.parse_args()
    profile, _ = read_profile(options.profile)
    planned = deployment.check(profile.model_copy(update={"admission": FEW}))
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        for loop in bare.LOOPS:
            bare.add(loop, models)
        threads = options.threads or planned.thread_pool_size
        with TritonServer(models, thread_pool_size=threads) as server:
            for context in CONTEXTS:
                _measure(server.grpc_url, context, options)


def _measure(url: str, context: int, options: argparse.Namespace) -> None:
    ids = np.random.default_rng(0).integers(2, 3000, context, np.int32)
    costs: dict[str, list[float]] = {loop: [] for loop in (*bare.LOOPS, "Tandem")}
    parts: dict[str, list[bare.Figures]] = {loop: [] for loop in bare.LOOPS}
    with Client(url) as client, grpc.InferenceServerClient(url) as connection:
        for turn in track(range(options.turns + 1), f"{context} tokens", transient=True):
            for loop in bare.LOOPS:
                figures = (
                    rounds.MS * bare.play(connection, loop, ids, options.rounds) / options.rounds
                )
                if turn:  # the first one warms up
                    costs[loop].append(figures[0] - figures[1 + bare.PARTS.index("engine")])
                    parts[loop].append(figures[1:])
            ours = rounds.play(client, ids, TOKENS_A_ROUND * options.rounds)
            if turn:
                costs["Tandem"].append(ours.orchestration)
    _print_costs(context, costs, options.profile)
    _print_parts(context, parts)


def _print_costs(context: int, costs: dict[str, list[float]], profile: Path) -> None:
    first = costs[bare.LOOPS[0]]
    headings = ("loop", "ms a round", "10-90 %", f"of {bare.LOOPS[0]}", "projected tokens/s")
    table = Table(*headings, title=f"{profile.stem}, {context} tokens")
    for name, figures in costs.items():
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(figures, first, strict=True)
        )
        projected = _projected(profile, statistics.median(figures))
        table.add_row(name, *_spread(figures), f"{ratio:.2f}", projected)
    Console().print(table)


def _projected(profile: Path, orchestration_ms: float) -> str:
    """What a published pair would reach with this loop, and what was published."""
    for row in published_rows.rows():
        if row.profile == profile.resolve():
            loop = Loop(profile, orchestration_ms=orchestration_ms)
            outcome = loop.run(published_rows.ANSWERS, draft_len=rounds.DRAFT_LEN)
            return f"{outcome.tokens_per_second:.1f} (published: {row.published})"
    return "-"


def _print_parts(context: int, parts: dict[str, list[bare.Figures]]) -> None:
    table = Table("ms a round, both calls", *bare.PARTS, title=f"{context} tokens, where it goes")
    for name, figures in parts.items():
        table.add_row(name, *(f"{part:.2f}" for part in np.median(figures, axis=0)))
    Console().print(table)


def _spread(figures: Sequence[float]) -> tuple[str, str]:
    tenths = statistics.quantiles(figures, n=10, method="inclusive")
    return f"{statistics.median(figures):.2f}", f"{tenths[0]:.2f}-{tenths[-1]:.2f}"


if __name__ == "__main__":
    main()
