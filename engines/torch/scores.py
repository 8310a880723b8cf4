"""Rows of logits, computed on demand, that a call's tokens are chosen from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch

Row: TypeAlias = torch.Tensor  # [vocab_size]


class Rows(Protocol):
    """Rows [vocab_size], for example a tensor [rows, vocab_size]."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Row: ...


class StepLogits(NamedTuple):
    """Result of a forward pass: logits [rows, vocab_size], on the model's device.

    tokens: [rows], chosen on the device; -1 after a draft token that was rejected by its logits;
    None: not chosen yet.
    log_probs: [rows], log-softmax of the logits at the tokens; None: not computed.
    """

    logits: torch.Tensor
    tokens: list[int] | None = None
    log_probs: list[float] | None = None

    def split(self, counts: list[int]) -> Iterator[StepLogits]:
        at = 0
        for count in counts:
            yield self._rows(at, at + count)
            at += count

    def last(self, count: int) -> StepLogits:
        return self._rows(len(self.logits) - count, len(self.logits))

    def _rows(self, start: int, end: int) -> StepLogits:
        tokens, log_probs = self.tokens, self.log_probs
        return StepLogits(
            self.logits[start:end], tokens and tokens[start:end], log_probs and log_probs[start:end]
        )


class LazyRows(Sequence[Row]):
    """Rows that are computed once, on first access.

    A verification ends at its first mismatch and reads no rows after it.
    """

    def __init__(self, length: int, make: Callable[[int], Row]) -> None:
        self._rows: list[Row | None] = [None] * length
        self._make = make

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Row:  # type: ignore[override]
        row = self._rows[i]
        if row is None:
            row = self._rows[i] = self._make(i)
        return row


def first_rows(rows: Rows, count: int) -> torch.Tensor:
    """Return the first `count` rows as one tensor [count, vocab_size]. count: at least 1."""
    if isinstance(rows, torch.Tensor):
        return rows[:count]
    return torch.stack([rows[i] for i in range(count)])
