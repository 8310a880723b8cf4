"""Options that set inputs of the entries."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tandem.bls.settings import AUTO, DRAFT_AHEAD
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.tools.client.client import Inputs
from tandem.tools.commands.options import Options, drafter_names, finite_number

SEED = "Seed for sampling; the same seed gives the same output."
HELP: Mapping[Tensor, str] = {
    tensors.LORA_NAME: "LoRA adapter of the target.",
    tensors.MIN_TOKENS: "Minimum output tokens.",
    tensors.STOP_WORDS: "End the output before this text; can be repeated.",
    tensors.BAD_WORDS: "Never generate this text; can be repeated.",
    tensors.TEMPERATURE: "Temperature; 0 is greedy.",
    tensors.TOP_K: "Sample from the k most likely tokens.",
    tensors.TOP_P: "Sample from the most likely tokens that together reach this probability.",
    tensors.MIN_P: "Exclude tokens less likely than this fraction of the most likely one.",
    tensors.SEED: SEED,
    tensors.RANDOM_SEED: SEED,
    tensors.REPETITION_PENALTY: "Penalize tokens that already occurred; 1 is no penalty.",
    tensors.PRESENCE_PENALTY: "Subtract this from the logits of tokens that already occurred.",
    tensors.FREQUENCY_PENALTY: "Subtract this from a token's logit for each time it occurred.",
    tensors.DRAFTER: f"Drafter: {drafter_names(baseline=True)}.",
    tensors.NUM_DRAFT_TOKENS: "Maximum draft tokens per round, or auto.",
    tensors.DRAFT_AHEAD: "Draft the next round while the target verifies: "
    f"{', '.join(DRAFT_AHEAD)}.",
    tensors.PROMPT_LOOKUP_NUM_TOKENS: "Maximum draft tokens per round of prompt lookup.",
    tensors.MAX_MATCHING_NGRAM_SIZE: "Longest n-gram for prompt lookup to match.",
    tensors.LOOKUP_POOL: "Lookup pool to copy from and to join.",
    tensors.USE_DRAFT_LOGITS: "Accept draft tokens by probability instead of comparing ids.",
    tensors.DRAFT_ACCEPTANCE_THRESHOLD: "Accept every draft token with at least this target "
    "probability. Lossy.",
}


def add_inputs(group: Options, inputs: Iterable[Tensor]) -> None:
    for tensor in inputs:
        name = option_name(tensor)
        group.add_argument(name, dest=str(tensor), help=HELP[tensor], **_reading(tensor))


def option_name(tensor: Tensor) -> str:
    return f"--{tensor.removesuffix('_words').replace('_', '-')}"


def read_inputs(options: argparse.Namespace, inputs: Iterable[Tensor]) -> Inputs:
    """Return the inputs that the user sets."""
    values = {tensor: getattr(options, tensor) for tensor in inputs}
    return {tensor: value for tensor, value in values.items() if value is not None}


def _reading(tensor: Tensor) -> dict[str, Any]:
    if tensor.dtype == "BOOL":
        return {"action": argparse.BooleanOptionalAction}
    if tensor.dtype == "STRING":
        action = "append" if tensor.dims == (-1,) else "store"
        return {"action": action, "metavar": "TEXT" if action == "append" else "NAME"}
    if tensor.dtype == "FP32":
        return {"type": finite_number, "metavar": "X"}
    return {"type": whole_number(tensor), "metavar": "N"}


def whole_number(tensor: Tensor) -> Callable[[str], int]:
    """Return an argparse type that reads whole numbers within the range of the tensor's type."""
    bounds = np.iinfo(tensor.dtype.lower())

    def read(text: str) -> int:
        if text == "auto" and tensor == tensors.NUM_DRAFT_TOKENS:
            return AUTO
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number; got {text!r}") from None
        if not bounds.min <= number <= bounds.max:
            bound = f"between {bounds.min} and {bounds.max}"
            raise argparse.ArgumentTypeError(f"must be {bound}; got {number}")
        return number

    return read
