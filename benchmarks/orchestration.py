"""What the loop costs a round, beside a loop that does nothing but call the engines.

    python -m benchmarks.orchestration

Both run in one server, over emulated engines that answer at once, in turns. A round's cost is its
time less the engines' own, by their clocks.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from tandem import deployment, repository
from tandem.client import Client
from tandem.server import TritonServer
from tritonclient import grpc

from contract import entry as tensors

HERE = Path(__file__).resolve().parent
PROFILE = HERE.parent / "profiles" / "emulated-zero.yaml"
CONTEXTS, ROUNDS, TOKENS, TURNS = (64, 2048), 100, 400, 15
MS = 1e3


def main() -> None:
    """Measure in turns and print medians."""
    planned = deployment.load(PROFILE)
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "repository")
        repository.render(planned, models, link=True)
        shutil.copytree(
            HERE / "bare_loop", models / "bare_loop", ignore=shutil.ignore_patterns("*.py")
        )
        (models / "bare_loop" / "1").mkdir()
        shutil.copy(HERE / "bare_loop" / "model.py", models / "bare_loop" / "1")
        with TritonServer(models, thread_pool_size=planned.thread_pool_size) as server:
            _print({context: _measure(server.grpc_url, context) for context in CONTEXTS})


def _measure(url: str, context: int) -> dict[str, list[float]]:
    """Milliseconds a round of both loops, a figure a turn."""
    ids = np.random.default_rng(0).integers(2, 3000, context, np.int32)
    costs: dict[str, list[float]] = {"bare asyncio loop": [], "Tandem": []}
    with Client(url) as client, grpc.InferenceServerClient(url) as connection:
        for turn in range(TURNS + 1):
            bare, ours = _bare(connection, ids), _ours(client, ids)
            if turn:  # the first one warms up
                costs["bare asyncio loop"].append(bare)
                costs["Tandem"].append(ours)
    return costs


def _bare(connection: grpc.InferenceServerClient, ids: np.ndarray) -> float:
    inputs = []
    for name, values in (("input_ids", ids), ("rounds", np.array([ROUNDS], np.int32))):
        inputs.append(grpc.InferInput(name, (1, len(values)), "INT32"))
        inputs[-1].set_data_from_numpy(values[np.newaxis].astype(np.int32))
    whole, engines = connection.infer("bare_loop", inputs).as_numpy("seconds")[0]
    return float(MS * (whole - engines) / ROUNDS)


def _ours(client: Client, ids: np.ndarray) -> float:
    inputs = {
        tensors.INPUT_IDS: ids.tolist(),
        tensors.MAX_TOKENS: TOKENS,
        tensors.NUM_DRAFT_TOKENS: 10,
        tensors.DRAFTER: "draft_model",
    }
    answer = client.answer("bls_stream", inputs)
    assert answer.statistics is not None
    figures = answer.statistics
    engines = figures["draft_seconds"] + figures["target_seconds"]
    return float(MS * (answer.seconds - engines) / figures["num_rounds"])


def _print(costs: dict[int, dict[str, list[float]]]) -> None:
    table = Table("context", "loop", "ms a round", "10-90 %")
    for context, loops in costs.items():
        for name, figures in loops.items():
            tenths = statistics.quantiles(figures, n=10, method="inclusive")
            median = f"{statistics.median(figures):.2f}"
            table.add_row(str(context), name, median, f"{tenths[0]:.2f}-{tenths[-1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
