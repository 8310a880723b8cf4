"""Loops that do nothing but call the engines: models beside Tandem's, and how they are asked."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tritonclient import grpc

Figures = NDArray[np.float64]

SOURCES = Path(__file__).resolve().parent / "bare_loops"
LOOPS = ("asyncio_loop", "thread_loop")
PARTS = ("build", "way in", "engine", "way out", "read")


def add(loop: str, models: Path) -> None:
    """Make a bare loop a model of the repository."""
    version = models / loop / "1"
    version.mkdir(parents=True)
    shutil.copy(SOURCES / "in_turns.pbtxt", models / loop / "config.pbtxt")
    shutil.copy(SOURCES / "hops.py", version)
    shutil.copy(SOURCES / f"{loop}.py", version / "model.py")


def play(
    connection: grpc.InferenceServerClient, loop: str, ids: NDArray[np.int32], rounds: int
) -> Figures:
    """Return the seconds that so many rounds took: in all, and in each part of their calls."""
    inputs = []
    for name, values in (("input_ids", ids), ("rounds", np.array([rounds], np.int32))):
        inputs.append(grpc.InferInput(name, (1, len(values)), "INT32"))
        inputs[-1].set_data_from_numpy(values[np.newaxis].astype(np.int32))
    seconds: Figures = connection.infer(loop, inputs).as_numpy("seconds")[0]
    return seconds
