"""What several loops give: rounds a second with `instances`, beside one loop.

    python -m benchmarks.instances
    python -m benchmarks.instances --instances 1 2 4 --at-once 1 16 64

One server over emulated engines has a stream entry for each number of loops. They are asked in
turns, in one order and then in the other, while the others are idle. Clients ask again as soon as
they are answered. A ratio compares an entry with the first one of the same turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.loops import entry_of, planned_loops, processor_seconds, render_loops
from benchmarks.rounds import play
from benchmarks.soak.processes import read_metrics
from tandem.tools.client.client import Client
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-70b-1b.yaml"
CONTEXT, TOKENS_A_ROUND = 64, 4
MS = 1e3
ENDED = "tandem_round_seconds_count"  # of sequences


class LoopsTurn(NamedTuple):
    """What the clients of an entry had. processor_ms: of all its loops, a round."""

    rounds_a_second: float
    processor_ms: float
    sequences: tuple[int, ...]  # by loop


def main() -> None:
    """Measure in turns and print medians."""
    options = _options()
    planned = {n: planned_loops(options.profile, n) for n in options.instances}
    turns: dict[tuple[int, int], list[LoopsTurn]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        models = render_loops(planned, Path(folder))
        threads = max(plan.thread_pool_size for plan in planned.values())
        server = stack.enter_context(TritonServer(models, thread_pool_size=threads))
        most = max(options.at_once)
        clients = [stack.enter_context(Client(server.grpc_url)) for _ in range(most)]
        for turn in track(range(options.turns + 1), transient=True):
            order = options.instances if turn % 2 else options.instances[::-1]
            for at_once in options.at_once:
                for number in order:
                    outcome = _turn(server, clients[:at_once], number, options, turn)
                    if turn:  # the first one warms up
                        turns[number, at_once].append(outcome)
    _print(options, turns)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of emulated engines")
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2], help="loops")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 64], help="clients")
    parser.add_argument("--rounds", type=int, default=40, help="of an answer")
    parser.add_argument("--answers", type=int, default=2, help="of each client in a turn")
    parser.add_argument("--turns", type=int, default=8, help="of all entries")
    return parser.parse_args()


def _turn(
    server: TritonServer,
    clients: Sequence[Client],
    instances: int,
    options: argparse.Namespace,
    turn: int,
) -> LoopsTurn:
    """Let every client have its answers, one after the other."""
    entry, shape = entry_of(instances), (len(clients), options.answers, CONTEXT)
    prompts = np.random.default_rng(turn).integers(2, 3000, shape, np.int32)
    tokens = TOKENS_A_ROUND * options.rounds

    def ask(client: Client, texts: NDArray[np.int32]) -> int:
        return sum(play(client, ids, tokens, model=entry).number for ids in texts)

    counted, spent = _sequences(server, entry), processor_seconds(server, entry)
    began = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as threads:
        made = sum(threads.map(ask, clients, prompts))
    seconds = time.perf_counter() - began
    spent = processor_seconds(server, entry) - spent
    while sum(_sequences(server, entry).values()) < sum(counted.values()) + prompts[..., 0].size:
        time.sleep(0.05)  # they are published a moment later
    now = _sequences(server, entry)
    by_loop = tuple(now[loop] - counted[loop] for loop in sorted(now, key=int))
    return LoopsTurn(made / seconds, MS * spent / made, by_loop)


def _sequences(server: TritonServer, entry: str) -> dict[str, int]:
    """How many sequences each loop of an entry has ended."""
    ended: dict[str, int] = defaultdict(int)
    for one in read_metrics(server):
        if one.name == ENDED and one.labels["model"] == entry:
            ended[one.labels["loop"]] += int(one.value)
    return ended


def _print(
    options: argparse.Namespace, turns: Mapping[tuple[int, int], Sequence[LoopsTurn]]
) -> None:
    first = options.instances[0]
    headings = ("instances", "at once", "rounds/s", "10-90 %", f"of {first}", "10-90 %")
    more = ("loop's ms a round", "sequences by loop")
    title = f"{options.profile.stem}, {options.turns} turns"
    table = Table(*headings, *more, title=title, caption=f"{os.cpu_count()} cores")
    for at_once in options.at_once:
        base = turns[first, at_once]
        for number in options.instances:
            outcomes = turns[number, at_once]
            pairs = zip(outcomes, base, strict=True)
            ratios = [ours.rounds_a_second / theirs.rounds_a_second for ours, theirs in pairs]
            loops = zip(*(outcome.sequences for outcome in outcomes), strict=True)
            table.add_row(
                *(str(number), str(at_once)),
                *_spread([outcome.rounds_a_second for outcome in outcomes], 1),
                *_spread(ratios, 3),
                f"{statistics.median(outcome.processor_ms for outcome in outcomes):.2f}",
                " ".join(str(sum(of_one)) for of_one in loops),
            )
    Console(width=110).print(table)


def _spread(figures: Sequence[float], digits: int) -> tuple[str, str]:
    """The median, and what the middle eight tenths lie between."""
    if len(figures) == 1:
        return f"{figures[0]:.{digits}f}", "-"
    tenths = statistics.quantiles(figures, n=10, method="inclusive")
    return f"{statistics.median(figures):.{digits}f}", (
        f"{tenths[0]:.{digits}f}-{tenths[-1]:.{digits}f}"
    )


if __name__ == "__main__":
    main()
