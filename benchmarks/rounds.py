"""Rounds of Tandem's own loop, and what they took by its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Client, Value

MODEL = "bls_stream"
DRAFT_LEN = 10
MS = 1e3


class Rounds(NamedTuple):
    """How many rounds an answer had, and milliseconds of one on average.

    orchestration: what the engines' own clocks leave of the whole.
    """

    number: int
    whole: float
    orchestration: float


def play(
    client: Client,
    ids: NDArray[np.int32],
    num_tokens: int,
    more: Mapping[Tensor, Value] = MappingProxyType({}),
    model: str = MODEL,
) -> Rounds:
    """Ask for so many tokens after ids [n], with a draft model and more inputs."""
    inputs: dict[Tensor, Value] = {
        tensors.INPUT_IDS: ids.tolist(),
        tensors.MAX_TOKENS: num_tokens,
        tensors.NUM_DRAFT_TOKENS: DRAFT_LEN,
        tensors.DRAFTER: "draft_model",
        tensors.DRAFT_AHEAD: "false",  # one part of a round after the other, as other loops do
        **more,
    }
    figures = client.answer(model, inputs).statistics
    assert figures is not None
    number, seconds = figures["num_rounds"], figures["decoding_seconds"]
    engines = figures["draft_seconds"] + figures["target_seconds"]
    return Rounds(number, MS * seconds / number, MS * (seconds - engines) / number)
