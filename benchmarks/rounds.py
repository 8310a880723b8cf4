"""Measures the rounds of Tandem's loop and of bare loops."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tritonclient import grpc

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Client, Value

DRAFT_LEN = 10
MS = 1e3
SOURCES = Path(__file__).resolve().parent / "bare_loops"
ASYNCIO, THREAD = BARE_LOOPS = ("asyncio_loop", "thread_loop")
BARE_PARTS = ("build", "way in", "engine", "way out", "read")


class Rounds(NamedTuple):
    """The number of rounds of an answer, and average milliseconds per round.

    whole: the duration. orchestration: the overhead. parts: only of bare loops, see `BARE_PARTS`.
    """

    number: int
    whole: float
    orchestration: float
    parts: tuple[float, ...] = ()


def play(
    client: Client,
    model: str,
    ids: NDArray[np.int32],
    num_tokens: int,
    more: Mapping[Tensor, Value] = MappingProxyType({}),
) -> Rounds:
    """Generate tokens after ids [n] with Tandem's loop and a draft model. more: further inputs."""
    inputs: dict[Tensor, Value] = {
        tensors.INPUT_IDS: ids.tolist(),
        tensors.MAX_TOKENS: num_tokens,
        tensors.NUM_DRAFT_TOKENS: DRAFT_LEN,
        tensors.DRAFTER: "draft_model",
        tensors.DRAFT_AHEAD: "false",  # one engine after the other, as in the bare loops
        **more,
    }
    figures = client.answer(model, inputs).statistics
    assert figures is not None
    number, seconds = figures["num_rounds"], figures["decoding_seconds"]
    engines = figures["draft_seconds"] + figures["target_seconds"]
    return Rounds(number, MS * seconds / number, MS * (seconds - engines) / number)


def play_bare(
    connection: grpc.InferenceServerClient, loop: str, ids: NDArray[np.int32], rounds: int
) -> Rounds:
    """Run rounds after ids [n] with a bare loop."""
    inputs = []
    for name, values in (("input_ids", ids), ("rounds", np.array([rounds], np.int32))):
        inputs.append(grpc.InferInput(name, (1, len(values)), "INT32"))
        inputs[-1].set_data_from_numpy(values[np.newaxis].astype(np.int32))
    seconds = connection.infer(loop, inputs).as_numpy("seconds")[0]
    whole, *parts = (MS * seconds / rounds).tolist()
    return Rounds(rounds, whole, whole - parts[BARE_PARTS.index("engine")], tuple(parts))


def add_bare(models: Path, loop: str) -> None:
    """Add a bare loop to a rendered repository as a model."""
    version = models / loop / "1"
    version.mkdir(parents=True)
    shutil.copy(SOURCES / "in_turns.pbtxt", models / loop / "config.pbtxt")
    shutil.copy(SOURCES / "hops.py", version)
    shutil.copy(SOURCES / f"{loop}.py", version / "model.py")
