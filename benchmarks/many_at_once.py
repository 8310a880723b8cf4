"""Measure rounds per second with many concurrent requests, and the processor time per round.

    python -m benchmarks.many_at_once
    python -m benchmarks.many_at_once --profile profiles/emulated-405b-8b.yaml --at-once 1 16
    python -m benchmarks.many_at_once --instances 1 2

Tandem, with each number of loop processes, and a minimal loop on threads alternate on one server
with emulated engines. If the minimal loop doesn't scale further either, the machine is the limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tritonclient import grpc

from benchmarks.rounds import MS, THREAD, add_bare, play, play_bare
from benchmarks.servers import entry_of, processor_seconds, serving_loops
from benchmarks.turns import in_turns, spread
from tandem.tools.client.client import Client
from tandem.tools.profiles.profile import read_profile
from tandem.tools.triton.server import TritonServer

PROFILE = Path(__file__).resolve().parents[1] / "profiles" / "emulated-70b-1b.yaml"
CONTEXT, TOKENS_PER_ROUND = 64, 4
PARTS = ("triton", "loop", "draft", "target", "client")
WIDTH = 120

# (number of the client, prompt ids [n], rounds to run) -> rounds that ran
Ask = Callable[[int, NDArray[np.int32], int], int]


class Turn(NamedTuple):
    """Results of one turn. processor_ms: processor time per round in milliseconds, by process."""

    rounds_per_second: float
    processor_ms: Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of emulated engines")
    parser.add_argument("--instances", type=int, nargs="+", default=[1], help="loop processes")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 64], help="requests")
    parser.add_argument("--rounds", type=int, default=60, help="of each request")
    parser.add_argument("--turns", type=int, default=5, help="of all loops")
    options = parser.parse_args()
    profile, _ = read_profile(options.profile)
    with (
        serving_loops(profile, options.instances, partial(add_bare, loop=THREAD)) as server,
        ExitStack() as stack,
    ):
        asks = _asks(server, options, stack)
        ways = {
            (name, at_once): partial(_turn, server, name, ask, at_once, options.rounds)
            for name, ask in asks.items()
            for at_once in options.at_once
        }
        _print(options, in_turns(ways, options.turns))


def _asks(server: TritonServer, options: argparse.Namespace, stack: ExitStack) -> dict[str, Ask]:
    url, most = server.grpc_url, max(options.at_once)
    clients = [stack.enter_context(Client(url)) for _ in range(most)]
    connections = [stack.enter_context(grpc.InferenceServerClient(url)) for _ in range(most)]

    def tandem(entry: str, client: int, ids: NDArray[np.int32], rounds: int) -> int:
        return play(clients[client], entry, ids, TOKENS_PER_ROUND * rounds).number

    def bare(client: int, ids: NDArray[np.int32], rounds: int) -> int:
        return play_bare(connections[client], THREAD, ids, rounds).number

    entries = [entry_of(number) for number in options.instances]
    return {entry: partial(tandem, entry) for entry in entries} | {THREAD: bare}


def _turn(  # noqa: PLR0917
    server: TritonServer, name: str, ask: Ask, at_once: int, rounds: int, turn: int
) -> Turn:
    prompts = np.random.default_rng(turn).integers(2, 3000, (at_once, CONTEXT), np.int32)
    before, client, began = processor_seconds(server), time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        made = sum(threads.map(lambda n: ask(n, prompts[n], rounds), range(at_once)))
    seconds = time.perf_counter() - began
    spent = {part: after - before[part] for part, after in processor_seconds(server).items()}
    spent |= {"loop": spent[name], "client": time.process_time() - client}
    return Turn(made / seconds, {part: MS * spent[part] / made for part in PARTS})


def _print(options: argparse.Namespace, turns: Mapping[tuple[str, int], list[Turn]]) -> None:
    first, fewest = entry_of(options.instances[0]), options.at_once[0]
    headings = ("loop", "at once", "rounds/s", "scaling", f"of {first}", *PARTS, "in all")
    title = f"{options.profile.stem}; on the right, ms of processor time per round"
    table = Table(*headings, title=title, caption=f"{os.cpu_count()} cores")
    rates = {way: [turn.rounds_per_second for turn in made] for way, made in turns.items()}

    def over(way: tuple[str, int], other: tuple[str, int]) -> str:
        pairs = zip(rates[way], rates[other], strict=True)
        return spread(ours / theirs for ours, theirs in pairs)

    for (name, at_once), made in turns.items():
        spent = [statistics.median(turn.processor_ms[part] for turn in made) for part in PARTS]
        table.add_row(
            *(name, str(at_once), spread(rates[name, at_once], 0)),
            over((name, at_once), (name, fewest)),
            over((name, at_once), (first, at_once)),
            *(f"{ms:.2f}" for ms in [*spent, sum(spent)]),
        )
    Console(width=WIDTH).print(table)


if __name__ == "__main__":
    main()
