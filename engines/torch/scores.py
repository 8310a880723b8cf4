"""The rows of logits that a call's tokens are chosen from, each worked out when it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch

Row: TypeAlias = torch.Tensor  # [vocab_size]


class Rows(Protocol):
    """Rows [vocab_size] one by one; a tensor [rows, vocab_size] is such."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Row: ...


class StepLogits(NamedTuple):
    """What a forward pass computed: logits [rows, vocab_size], on the model's device.

    best: [rows], each row's best token, on the host; None where nobody has looked yet.
    """

    logits: torch.Tensor
    best: list[int] | None = None

    def split(self, counts: list[int]) -> Iterator[StepLogits]:
        """Yield parts of so many rows each."""
        at = 0
        for count, rows in zip(counts, torch.split(self.logits, counts), strict=True):
            yield StepLogits(rows, self.best and self.best[at : at + count])
            at += count

    def last(self, count: int) -> StepLogits:
        """Return the last rows."""
        first = len(self.logits) - count
        return StepLogits(self.logits[first:], self.best and self.best[first:])


class LazyRows(Sequence[Row]):
    """Rows that are made, once, when somebody asks for them.

    A verification ends at its first mismatch: what would come behind that is never made.
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
    """Return the first rows as one tensor [count, vocab_size]; count is at least 1."""
    if isinstance(rows, torch.Tensor):
        return rows[:count]
    return torch.stack([rows[i] for i in range(count)])
