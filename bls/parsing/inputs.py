"""The inputs of a client's request, one by one: their names, sizes, shapes and bounds are checked.

Triton lets a batch omit a required input, wraps a number that is too large, and passes keys that it
does not know on as parameters. Every complaint names the input and what would be right.
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

# What a front end may send that is not an input of ours: Triton's own request parameters.
TRITON_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output"}
)

WORD_LISTS = (tensors.STOP_WORDS, tensors.BAD_WORDS, tensors.EMBEDDING_BIAS_WORDS)
MAX_PARAMETERS_BYTES = 64 * 1024  # none of them is an input, so none is long
LONGEST_QUOTE = 40  # characters of a client's own text in an error
NOTHING: NDArray[Any] = np.empty(0)


class Inputs:
    """The arrays of one request, by name, a row a prompt.

    Values are copied: Triton may take the memory back.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        for name, array in arrays.items():
            if len(array) != self.batch_size:
                raise BadRequest(
                    f"input '{name}': {len(array)} rows given, the request has "
                    f"{self.batch_size} prompts"
                )

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether the client sent it."""
        return tensor in self._arrays

    @property
    def batch_size(self) -> int:
        """How many prompts the request holds."""
        return len(next(iter(self._arrays.values()))) if self._arrays else 0

    def values(self, tensor: Tensor, row: int) -> NDArray[Any]:
        """Return a prompt's values, [n], not copied; none where the input is missing."""
        array = self._arrays.get(tensor)
        return NOTHING if array is None else array[row].reshape(-1)

    def flag(self, tensor: Tensor, row: int, default: bool = False) -> bool:
        """Return a prompt's truth value."""
        return bool(self.scalar(tensor, row, default))

    def integer(self, tensor: Tensor, row: int, least: int, most: int) -> int | None:
        """Return a prompt's whole number; None where the input is missing."""
        value = self.scalar(tensor, row, None)
        if value is None:
            return None
        if not least <= value <= most:
            raise BadRequest(f"input '{tensor}': {value} given, must lie in {least}..{most}")
        return int(value)

    def number(self, tensor: Tensor, row: int, bounds: Bounds) -> float | None:
        """Return a prompt's number, whole if the tensor's type is; None if the input is missing."""
        value = self.scalar(tensor, row, None)
        if value is not None and not bounds.hold(value):
            raise BadRequest(f"input '{tensor}': {value:g} given, must be {bounds}")
        number: float | None = value
        return number

    def scalar(self, tensor: Tensor, row: int, default: Any) -> Any:
        """Return the only value of a prompt; ``default`` where the input is missing."""
        if tensor not in self:
            return default
        values = self.values(tensor, row)
        if len(values) != 1:
            raise BadRequest(f"input '{tensor}': {len(values)} values given for a prompt, send one")
        return values[0].item()

    def strings(self, tensor: Tensor, row: int) -> tuple[str, ...]:
        """Return a prompt's strings; none where the input is missing."""
        try:
            return tuple(value.decode() for value in self.values(tensor, row))
        except UnicodeDecodeError as error:
            raise BadRequest(
                f"input '{tensor}' is not valid UTF-8: byte {error.object[error.start]:#04x} at "
                f"position {error.start}"
            ) from error

    def refuse_unless(
        self, possible: bool, row: int, inputs: Iterable[Tensor], reason: str
    ) -> None:
        """Refuse inputs that were given (a flag: set) where they cannot be honoured."""
        for tensor in () if possible else inputs:
            if any(self.values(tensor, row).tolist()):
                raise BadRequest(f"input '{tensor}' {reason}")


def refuse_unknown(parameters: str) -> None:
    """`generate` makes a parameter of every key that is not an input: a typo must not vanish.

    parameters: the request's, as the JSON object that Triton gives.
    """
    if len(parameters) > MAX_PARAMETERS_BYTES:
        raise BadRequest(
            f"{len(parameters)} bytes of parameters given, at most {MAX_PARAMETERS_BYTES} are "
            "taken; send inputs only"
        )
    names: list[str] = list(tensors.INPUTS)
    for key in json.loads(parameters or "{}"):
        if key in TRITON_PARAMETERS or key.startswith("triton_"):
            continue
        near = difflib.get_close_matches(key[:LONGEST_QUOTE], names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise BadRequest(f"unknown input {quoted(key)}{hint}")


def check_sizes(inputs: Mapping[str, NDArray[Any]], limits: RequestLimits) -> None:
    """Refuse what is too much to look at: it costs no more than asking each value for its length.

    inputs: by name, a row a prompt; strings as bytes.
    """
    texts = inputs.get(tensors.TEXT_INPUT, np.empty((0, 1), object))
    longest = max((len(text) for text in texts.flat), default=0)
    if limits.max_text_bytes and longest > limits.max_text_bytes:
        raise BadRequest(
            f"input '{tensors.TEXT_INPUT}': {longest} bytes given, at most {limits.max_text_bytes} "
            "are taken; shorten the prompt"
        )
    lists = {tensor: inputs[tensor] for tensor in WORD_LISTS if tensor in inputs}
    for tensor, words in lists.items():
        if words.size > len(words) * limits.max_words:
            raise BadRequest(
                f"input '{tensor}': {words.size // len(words)} words given for a prompt, at most "
                f"{limits.max_words} are taken"
            )
    size = sum(len(word) for words in lists.values() for word in words.flat)
    if size > limits.max_words_bytes:
        names = ", ".join(f"'{tensor}'" for tensor in lists)
        raise BadRequest(
            f"input{'s' * (len(lists) > 1)} {names}: {size} bytes given in all, at most "
            f"{limits.max_words_bytes} are taken"
        )


def quoted(text: str) -> str:
    """A client's own text, short and on one line."""
    cut = "..." if len(text) > LONGEST_QUOTE else ""
    return repr(text[:LONGEST_QUOTE] + cut)
