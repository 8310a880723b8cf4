"""Measures the rounds of Tandem's loop."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Client, Value

DRAFT_LEN = 10
MS = 1e3


class Rounds(NamedTuple):
    """The number of rounds of an answer, and average milliseconds per round.

    whole: the duration. orchestration: the overhead. parts: only of bare loops.
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
