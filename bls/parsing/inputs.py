"""Checks the names, sizes, shapes and bounds of a request's inputs.

Triton doesn't reject invalid requests: it accepts a batch without a required input, wraps numbers
that are too large, and passes unknown keys on as parameters. Each error names the input and the
valid values.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.bls.errors import BadRequest
from tandem.bls.settings import RequestLimits
from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.sampling.params import Bounds

# Request parameters that Triton's front ends may add.
TRITON_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)

WORD_LISTS = (tensors.STOP_WORDS, tensors.BAD_WORDS, tensors.EMBEDDING_BIAS_WORDS)
MAX_PARAMETERS_BYTES = 64 * 1024
MAX_QUOTE_CHARS = 40  # maximum number of characters of client text in an error
NOTHING: NDArray[Any] = np.empty(0)


class PromptInputs:
    """The inputs of one prompt by name, [1, ...]: its row of each input array."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], row: int) -> None:
        self._arrays = {name: array[row : row + 1] for name, array in arrays.items()}

    def __contains__(self, tensor: Tensor) -> bool:
        """Return whether the client sent this input."""
        return tensor in self._arrays

    def values(self, tensor: Tensor) -> NDArray[Any]:
        """Return a view of the values, [n]; empty if the input is missing."""
        array = self._arrays.get(tensor)
        return NOTHING if array is None else array.reshape(-1)

    def copy(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of the array, [1, ...]. The input must not be missing."""
        return self._arrays[tensor].copy()

    def flag(self, tensor: Tensor, default: bool = False) -> bool:
        return bool(self.scalar(tensor, default))

    def integer(self, tensor: Tensor, minimum: int, maximum: int) -> int | None:
        """Return the integer between ``minimum`` and ``maximum``; None if it is missing."""
        value = self.scalar(tensor, None)
        if value is None:
            return None
        if not minimum <= value <= maximum:
            raise BadRequest(
                f"input '{tensor}' must be between {minimum} and {maximum}; got {value}"
            )
        return int(value)

    def number(self, tensor: Tensor, bounds: Bounds) -> float | None:
        """Return the finite number within ``bounds``; None if it is missing."""
        value = self.scalar(tensor, None)
        if value is not None and (fault := bounds.fault(value)):
            raise BadRequest(f"input '{tensor}' {fault}")
        number: float | None = value
        return number

    def scalar(self, tensor: Tensor, default: Any) -> Any:
        """Return the only value; ``default`` if the input is missing."""
        if tensor not in self:
            return default
        values = self.values(tensor)
        if len(values) != 1:
            raise BadRequest(f"input '{tensor}' must have one value per prompt; got {len(values)}")
        return values[0].item()

    def strings(self, tensor: Tensor) -> tuple[str, ...]:
        """Return the strings; empty if the input is missing."""
        try:
            return tuple(value.decode() for value in self.values(tensor))
        except UnicodeDecodeError as error:
            raise BadRequest(
                f"input '{tensor}' must be UTF-8; got byte {error.object[error.start]:#04x} at "
                f"position {error.start}"
            ) from error

    def reject_unless(self, possible: bool, inputs: Iterable[Tensor], reason: str) -> None:
        """Unless ``possible``, reject inputs whose values aren't all zero, false or empty."""
        for tensor in () if possible else inputs:
            if any(self.values(tensor).tolist()):
                raise BadRequest(f"input '{tensor}' {reason}")


def split_rows(arrays: Mapping[str, NDArray[Any]]) -> list[PromptInputs]:
    """Return the inputs of each prompt. arrays: inputs by name, with one row per prompt."""
    size = len(next(iter(arrays.values()))) if arrays else 0
    for name, array in arrays.items():
        if len(array) != size:
            raise BadRequest(
                f"input '{name}' must have {size} rows, one per prompt; got {len(array)}"
            )
    return [PromptInputs(arrays, row) for row in range(size)]


def reject_unknown(parameters: str) -> None:
    """Reject unknown keys, so that a typo isn't ignored. `generate` turns them into parameters.

    parameters: the request's parameters, as a JSON object from Triton.
    """
    if len(parameters) > MAX_PARAMETERS_BYTES:
        raise BadRequest(
            f"the request's parameters have {len(parameters)} bytes; the limit is "
            f"{MAX_PARAMETERS_BYTES}; send inputs instead"
        )
    names: list[str] = list(tensors.INPUTS)
    for key in json.loads(parameters or "{}"):
        if key in TRITON_PARAMETERS or key.startswith("triton_"):
            continue
        if key in names:
            raise BadRequest(f"input '{key}' must be a tensor; it was sent as a parameter")
        near = difflib.get_close_matches(key[:MAX_QUOTE_CHARS], names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise BadRequest(f"input {quote(key)} isn't known{hint}")


def check_sizes(inputs: Mapping[str, NDArray[Any]], limits: RequestLimits) -> None:
    """Reject inputs that are too large, without reading their contents.

    inputs: arrays by name, with one row per prompt; strings as bytes.
    """
    for tensor, text in ((tensors.TEXT_INPUT, "prompt"), (tensors.PREDICTION, "prediction")):
        longest = max(map(len, inputs.get(tensor, NOTHING).flat), default=0)
        if limits.max_text_bytes and longest > limits.max_text_bytes:
            raise BadRequest(
                f"input '{tensor}' has {longest} bytes; the limit is {limits.max_text_bytes}; "
                f"shorten the {text}"
            )
    lists = {tensor: inputs[tensor] for tensor in WORD_LISTS if tensor in inputs}
    for tensor, words in lists.items():
        if words.size > len(words) * limits.max_words:
            raise BadRequest(
                f"input '{tensor}' has {words.size // len(words)} words per prompt; the limit is "
                f"{limits.max_words}"
            )
    size = sum(len(word) for words in lists.values() for word in words.flat)
    if size > limits.max_words_bytes:
        names = " and ".join(f"'{tensor}'" for tensor in lists)
        raise BadRequest(
            f"input{'s' * (len(lists) > 1)} {names}: {size} bytes in total; the limit is "
            f"{limits.max_words_bytes}"
        )


def quote(text: str) -> str:
    """Return client text for an error message, shortened and on one line."""
    cut = "..." if len(text) > MAX_QUOTE_CHARS else ""
    return repr(text[:MAX_QUOTE_CHARS] + cut)
