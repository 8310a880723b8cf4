"""Groups of prompts, from a file or with random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tandem.contract import entry as tensors
from tandem.tools.client.client import Inputs
from tandem.tools.client.dataset import read_prompts

# Range of random token ids. Every vocabulary contains them, and special tokens that a vocabulary
# numbers first have lower ids.
LOWEST_ID, HIGHEST_ID = 300, 1000


class Scenario(NamedTuple):
    """Prompts that are measured together. prompts: for each prompt, the inputs that contain it."""

    name: str
    prompts: Sequence[Inputs]


def scenarios_of_file(path: Path, limit: int) -> list[Scenario]:
    """Return one scenario per kind of prompt in a file, with at most ``limit`` prompts each.

    The scenario of prompts without a kind has the file's name.
    """
    kinds: dict[str, list[Inputs]] = {}
    for prompt in read_prompts(path):
        inputs = {tensors.TEXT_INPUT: prompt.text}
        if prompt.prediction:
            inputs[tensors.PREDICTION] = prompt.prediction
        kinds.setdefault(prompt.kind or path.stem, []).append(inputs)
    return [Scenario(kind, prompts[:limit]) for kind, prompts in kinds.items()]


def scenarios_of_lengths(lengths: Sequence[int], limit: int) -> list[Scenario]:
    """Return one scenario per prompt length, with ``limit`` prompts of random token ids each.

    lengths: in tokens. The ids are the same in every run.
    """

    def prompt(length: int, number: int) -> Inputs:
        ids = np.random.default_rng([length, number]).integers(LOWEST_ID, HIGHEST_ID, length)
        return {tensors.INPUT_IDS: ids.tolist()}

    return [
        Scenario(f"{length} tokens", [prompt(length, number) for number in range(limit)])
        for length in dict.fromkeys(lengths)
    ]
