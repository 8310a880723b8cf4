"""One request of `postprocessing`: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.contract import postprocessing as tensors
from tandem.postprocessing.detokenizer import (
    Detokenizer,
    decode_chunk,
    make_detokenizer,
    text_lengths,
)
from tandem.preprocessing.preprocessor import require_input
from tandem.preprocessing.tokenizer import InputError, load_tokenizer

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class DetokenizerSettings:
    """The parameters of the model.

    tokenizer_dir: Hugging Face folder, absolute or relative to the model's version folder.
    skip_special_tokens: whether special tokens (BOS, EOS, ...) are omitted from the text.
    max_seq_len: maximum number of ids in a sequence; 0: no limit.
    """

    tokenizer_dir: str
    skip_special_tokens: bool
    max_seq_len: int = 0


class Postprocessor:
    """Converts the input tensors of one request to its output tensors."""

    def __init__(self, detokenizer: Detokenizer, max_seq_len: int) -> None:
        self._detokenizer = detokenizer
        self._max_seq_len = max_seq_len

    @classmethod
    def load(cls, settings: DetokenizerSettings, base: Path) -> Postprocessor:
        """Load the tokenizer. Raises TokenizerError. `tokenizer_dir` is relative to `base`."""
        tokenizer = load_tokenizer(base / settings.tokenizer_dir)
        detokenizer = make_detokenizer(tokenizer, skip_special_tokens=settings.skip_special_tokens)
        return cls(detokenizer, settings.max_seq_len)

    def answer(self, inputs: Mapping[str, Array], wanted: Collection[str]) -> dict[str, Array]:
        """Return the wanted outputs. Raises InputError.

        TOKENS_BATCH [b, beams, n], SEQUENCE_LENGTH [b, beams] and CONTEXT_LENGTH [b] (or absent)
        are described in `postprocessing.detokenizer`. OUTPUT [b * beams] is UTF-8 bytes in NVIDIA's
        order: all beams of the first prompt, then all beams of the second, and so on. TEXT_LENGTHS
        is [b * beams, longest].
        """
        if not {tensors.OUTPUT, tensors.TEXT_LENGTHS} & set(wanted):
            return {}
        sequences = _sequences(inputs, self._max_seq_len)
        context = inputs.get(tensors.CONTEXT_LENGTH)
        lengths = [0] * len(sequences)
        if context is not None:
            lengths = _context_lengths(context, sequences, len(inputs[tensors.TOKENS_BATCH]))
        try:
            if context is None:
                texts = [self._detokenizer.decode_all(ids) for ids in sequences]
            else:
                texts = [
                    decode_chunk(self._detokenizer, ids, length)
                    for ids, length in zip(sequences, lengths, strict=True)
                ]
            answer: dict[str, Array] = {}
            answer[tensors.OUTPUT] = np.array([text.encode() for text in texts], dtype=object)
            if tensors.TEXT_LENGTHS in wanted:
                rows = [
                    text_lengths(self._detokenizer, ids, length)
                    for ids, length in zip(sequences, lengths, strict=True)
                ]
                padded = np.zeros((len(rows), max(map(len, rows), default=0)), np.int32)
                for at, row in enumerate(rows):
                    padded[at, : len(row)] = row
                answer[tensors.TEXT_LENGTHS] = padded
        except OverflowError as error:  # cheaper than checking every id of every window
            raise InputError(
                f"{tensors.TOKENS_BATCH} must not have negative ids", tensors.TOKENS_BATCH
            ) from error
        return answer


def _sequences(inputs: Mapping[str, Array], max_seq_len: int) -> list[list[int]]:
    """Return the ids of every sequence as [b * beams] lists, without padding."""
    tokens = require_input(inputs, tensors.TOKENS_BATCH)
    lengths = require_input(inputs, tensors.SEQUENCE_LENGTH)
    if tokens.ndim != 3:
        raise InputError(
            f"{tensors.TOKENS_BATCH} must have shape [b, beams, n]; got {list(tokens.shape)}",
            tensors.TOKENS_BATCH,
        )
    if lengths.shape != tokens.shape[:2]:
        raise InputError(
            f"{tensors.SEQUENCE_LENGTH} must have shape {list(tokens.shape[:2])}, as "
            f"{tensors.TOKENS_BATCH}; got {list(lengths.shape)}",
            tensors.SEQUENCE_LENGTH,
        )
    width = tokens.shape[2]
    if 0 < max_seq_len < width:
        raise InputError(
            f"{tensors.TOKENS_BATCH} has {width} ids; the limit is {max_seq_len}",
            tensors.TOKENS_BATCH,
        )
    rows = tokens.reshape(lengths.size, width).tolist()
    flat_lengths = lengths.reshape(-1).tolist()
    for length in flat_lengths:
        if not 0 <= length <= width:
            raise InputError(
                f"{tensors.SEQUENCE_LENGTH} must be between 0 and {width}; got {length}",
                tensors.SEQUENCE_LENGTH,
            )
    return [row[:length] for row, length in zip(rows, flat_lengths, strict=True)]


def _context_lengths(context: Array, sequences: list[list[int]], batch: int) -> list[int]:
    """Return the context length of every sequence. The beams of a prompt share one."""
    if context.size != batch:
        raise InputError(
            f"{tensors.CONTEXT_LENGTH} must have {batch} values; got {context.size}",
            tensors.CONTEXT_LENGTH,
        )
    beams = len(sequences) // max(batch, 1)
    lengths = [length for length in context.reshape(-1).tolist() for _ in range(beams)]
    for length, ids in zip(lengths, sequences, strict=True):
        if not 0 <= length <= len(ids):
            raise InputError(
                f"{tensors.CONTEXT_LENGTH} must be between 0 and {len(ids)}; got {length}",
                tensors.CONTEXT_LENGTH,
            )
    return lengths
