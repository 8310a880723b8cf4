"""Compare the overhead of Tandem's loop per round with loops that only call the engines.

    python -m benchmarks.orchestration
    python -m benchmarks.orchestration --profile tandem/profiles/emulated-70b-1b.yaml --rounds 40

All loops run in one server with emulated engines, and alternate. The overhead of a round is its
duration minus the time that the engines report. The second table breaks down the calls of the bare
loops by process.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tritonclient import grpc

from benchmarks.servers import ENTRY, serving_loop
from benchmarks.turns import in_turns, spread
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Client, Value
from tandem.tools.commands.options import PROFILES
from tandem.tools.profiles.profile import AdmissionSection, read_profile

DRAFT_LEN = 10
MS = 1e3
PROFILE = PROFILES / "emulated-zero.yaml"
CONTEXTS, TOKENS_PER_ROUND = (64, 2048), 5
SOURCES = Path(__file__).resolve().parent / "bare_loops"
BARE_LOOPS = ("asyncio_loop", "thread_loop")
BARE_PARTS = ("build", "way in", "engine", "way out", "read")
FEW = AdmissionSection(max_requests=4, max_queue=4)  # few, because idle server threads add overhead


class RoundTimes(NamedTuple):
    """Average milliseconds per round of an answer.

    orchestration: time outside the engines. parts: its parts, known only for bare loops.
    """

    orchestration: float
    parts: tuple[float, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of emulated engines")
    parser.add_argument("--rounds", type=int, default=200, help="of each loop in a turn")
    parser.add_argument("--turns", type=int, default=25, help="of all loops")
    parser.add_argument("--threads", type=int, help="Triton's threads per model (default: few)")
    options = parser.parse_args()
    profile = read_profile(options.profile)
    profile = profile.model_copy(update={"admission": FEW})
    with serving_loop(profile, change=_add_bare_loops, threads=options.threads) as server:
        url = server.grpc_url
        with Client(url) as client, grpc.InferenceServerClient(url) as connection:
            for context in CONTEXTS:
                outcomes = _measure(client, connection, context, options)
                _print(context, outcomes, options.profile)


def _add_bare_loops(models: Path) -> None:
    """Add the bare loops to a rendered repository as models."""
    for loop in BARE_LOOPS:
        version = models / loop / "1"
        version.mkdir(parents=True)
        shutil.copy(SOURCES / "in_turns.pbtxt", models / loop / "config.pbtxt")
        shutil.copy(SOURCES / "hops.py", version)
        shutil.copy(SOURCES / f"{loop}.py", version / "model.py")


def _measure(
    client: Client,
    connection: grpc.InferenceServerClient,
    context: int,
    options: argparse.Namespace,
) -> dict[str, list[RoundTimes]]:
    ids = np.random.default_rng(0).integers(2, 3000, context, np.int32)

    def bare(loop: str) -> Callable[[int], RoundTimes]:
        return lambda _: _play_bare(connection, loop, ids, options.rounds)

    def tandem(_: int) -> RoundTimes:
        return _play(client, ids, TOKENS_PER_ROUND * options.rounds)

    variants = {loop: bare(loop) for loop in BARE_LOOPS} | {"Tandem": tandem}
    return in_turns(variants, options.turns, f"{context} tokens")


def _play(client: Client, ids: NDArray[np.int32], num_tokens: int) -> RoundTimes:
    """Generate tokens after ids [n] with Tandem's loop and a draft model."""
    inputs: dict[Tensor, Value] = {
        tensors.INPUT_IDS: ids.tolist(),
        tensors.MAX_TOKENS: num_tokens,
        tensors.NUM_DRAFT_TOKENS: DRAFT_LEN,
        tensors.DRAFTER: "draft_model",
        tensors.DRAFT_AHEAD: "false",  # one engine after the other, as in the bare loops
    }
    figures = client.answer(ENTRY, inputs).statistics
    assert figures is not None
    number, seconds = figures["num_rounds"], figures["decoding_seconds"]
    engines = figures["draft_seconds"] + figures["target_seconds"]
    return RoundTimes(MS * (seconds - engines) / number)


def _play_bare(
    connection: grpc.InferenceServerClient, loop: str, ids: NDArray[np.int32], rounds: int
) -> RoundTimes:
    """Run rounds after ids [n] with a bare loop."""
    inputs = []
    for name, values in (("input_ids", ids), ("rounds", np.array([rounds], np.int32))):
        inputs.append(grpc.InferInput(name, (1, len(values)), "INT32"))
        inputs[-1].set_data_from_numpy(values[np.newaxis].astype(np.int32))
    seconds = connection.infer(loop, inputs).as_numpy("seconds")[0]
    whole, *parts = (MS * seconds / rounds).tolist()
    return RoundTimes(whole - parts[BARE_PARTS.index("engine")], tuple(parts))


def _print(context: int, outcomes: Mapping[str, Sequence[RoundTimes]], profile: Path) -> None:
    headings = ("loop", "ms a round (10-90 %)", f"of {BARE_LOOPS[0]}")
    costs = Table(*headings, title=f"{profile.stem}, {context} tokens")
    parts = Table("ms a round, both calls", *BARE_PARTS, title="where it goes")
    for name, rounds in outcomes.items():
        own = [round_.orchestration for round_ in rounds]
        pairs = zip(own, outcomes[BARE_LOOPS[0]], strict=True)
        ratio = statistics.median(ours / theirs.orchestration for ours, theirs in pairs)
        costs.add_row(name, spread(own), f"{ratio:.2f}")
        if name in BARE_LOOPS:
            medians = np.median([round_.parts for round_ in rounds], axis=0)
            parts.add_row(name, *(f"{part:.2f}" for part in medians))
    Console().print(costs, parts)


if __name__ == "__main__":
    main()
