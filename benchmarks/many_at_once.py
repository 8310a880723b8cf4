"""How rounds a second grow with requests at once, and whose processor time a round takes.

    python -m benchmarks.many_at_once
    python -m benchmarks.many_at_once --profile profiles/emulated-405b-8b.yaml --at-once 16

Tandem beside the barest loop on threads, in turns on one server over emulated engines. Where the
bare loop does not grow any further either, it is the machine that ends.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tritonclient import grpc

from benchmarks import bare
from benchmarks.rounds import MODEL, MS, play
from tandem.tools.client.client import Client
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-70b-1b.yaml"
BARE = "thread_loop"
CONTEXT, TOKENS_A_ROUND = 64, 4
WIDTH = 100
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MB = 2**20

Ask = Callable[[int, NDArray[np.int32], int], int]  # by a client's number, ids and rounds: rounds


class Turn(NamedTuple):
    """What a number of requests at once did. Processor time is by process, in ms a round."""

    rounds_a_second: float
    processor_ms: Mapping[str, float]


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of emulated engines")
    parser.add_argument(
        "--at-once", type=int, default=64, help="requests at once, beside one alone"
    )
    parser.add_argument("--rounds", type=int, default=60, help="of each request")
    parser.add_argument("--turns", type=int, default=5, help="of both loops")
    options = parser.parse_args()
    planned = deployment.load(options.profile)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        bare.add(BARE, models)
        server = stack.enter_context(
            TritonServer(models, thread_pool_size=planned.thread_pool_size)
        )
        asks = {MODEL: _tandem(server, options, stack), BARE: _bare(server, options, stack)}
        turns: dict[tuple[str, int], list[Turn]] = {}
        for turn in track(range(options.turns + 1), transient=True):
            for name, ask in asks.items():
                for at_once in (1, options.at_once):
                    outcome = _turn(server, ask, at_once, options.rounds, turn)
                    if turn:  # the first one warms up
                        turns.setdefault((name, at_once), []).append(outcome)
        _print(options, turns, _resident_mb(server, MODEL))


def _tandem(server: TritonServer, options: argparse.Namespace, stack: ExitStack) -> Ask:
    clients = [stack.enter_context(Client(server.grpc_url)) for _ in range(options.at_once)]

    def ask(client: int, ids: NDArray[np.int32], rounds: int) -> int:
        return play(clients[client], ids, TOKENS_A_ROUND * rounds).number

    return ask


def _bare(server: TritonServer, options: argparse.Namespace, stack: ExitStack) -> Ask:
    url = server.grpc_url
    connections = [
        stack.enter_context(grpc.InferenceServerClient(url)) for _ in range(options.at_once)
    ]

    def ask(client: int, ids: NDArray[np.int32], rounds: int) -> int:
        bare.play(connections[client], BARE, ids, rounds)
        return rounds

    return ask


def _turn(server: TritonServer, ask: Ask, at_once: int, rounds: int, turn: int) -> Turn:
    prompts = np.random.default_rng(turn).integers(2, 3000, (at_once, CONTEXT), np.int32)
    before, began = _processor_seconds(server), time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        made = sum(threads.map(lambda n: ask(n, prompts[n], rounds), range(at_once)))
    seconds, after = time.perf_counter() - began, _processor_seconds(server)
    spent = {name: MS * (after[name] - before[name]) / made for name in after}
    return Turn(made / seconds, spent)


def _processor_seconds(server: TritonServer) -> dict[str, float]:
    """Processor time so far, of each process of the server and of this one."""
    spent = {"client": time.process_time()}
    for process in server.processes:
        times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        name = _name_of(process)
        spent[name] = spent.get(name, 0.0) + (int(times[11]) + int(times[12])) / TICKS
    return spent


def _name_of(process: int) -> str:
    """The model of a stub; any other process of the server is Triton's own."""
    found = re.search(r"/repository/(\w+)/", Path(f"/proc/{process}/cmdline").read_text())
    return found[1] if found else "Triton"


def _resident_mb(server: TritonServer, model: str) -> float:
    process = next(p for p in server.processes if _name_of(p) == model)
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE / MB


def _print(
    options: argparse.Namespace, turns: dict[tuple[str, int], list[Turn]], resident_mb: float
) -> None:
    parts = ("Triton", "loop", "draft", "target", "client")
    headings = ("loop", "at once", "rounds/s", "scaling", *parts, "in all")
    title = f"{options.profile.stem}; behind the scaling, ms of processor time a round"
    table = Table(*headings, title=title)
    for (name, at_once), outcomes in turns.items():
        alone = turns[name, 1]
        scaling = [
            many.rounds_a_second / one.rounds_a_second
            for many, one in zip(outcomes, alone, strict=True)
        ]
        spent = [
            statistics.median(o.processor_ms[name if part == "loop" else part] for o in outcomes)
            for part in parts
        ]
        rate = statistics.median(o.rounds_a_second for o in outcomes)
        figures = [f"{rate:.0f}", f"{statistics.median(scaling):.1f}"]
        table.add_row(name, str(at_once), *figures, *(f"{s:.2f}" for s in [*spent, sum(spent)]))
    table.caption = f"{os.cpu_count()} cores; {MODEL} has {resident_mb:.0f} MB of memory"
    Console(width=WIDTH).print(table)


if __name__ == "__main__":
    main()
