"""A step over the paged cache, as one array of integers that is copied to the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.engines.torch.attention import BranchSegment, Packed
from tandem.engines.torch.paged.page_pool import PADDING
from tandem.engines.torch.paged.paged_kv_cache import PagedBranchKV

Numbers = NDArray[np.int32]


class PagedRow(NamedTuple):
    """New tokens of one text: `new` tokens after `start` earlier ones, and the text's pages."""

    start: int
    new: int
    pages: Sequence[int] | Numbers


def paged_rows(segment: Packed) -> list[PagedRow]:
    if isinstance(segment, BranchSegment):
        assert isinstance(segment.own, PagedBranchKV)
        starts = segment.positions.tolist()
        tables = segment.own.tables
        return [PagedRow(start, 1, pages) for start, pages in zip(starts, tables, strict=True)]
    return [PagedRow(segment.start, segment.count, segment.entry.pages)]


class StepSize(NamedTuple):
    """Size of a step: `rows` texts with at most `width` new tokens and `pages` pages each.

    tokens: number of new tokens of all texts.
    """

    rows: int
    width: int
    pages: int
    tokens: int

    @property
    def numbers(self) -> int:
        """Number of integers in a `PagedBatch` of this size."""
        return 4 * self.tokens + 2 * self.rows + 1 + self.rows * self.pages

    @property
    def is_even(self) -> bool:
        """Whether each row has exactly `width` new tokens, so that the step is a rectangle."""
        return self.tokens == self.rows * self.width

    def holds(self, rows: Sequence[PagedRow], page_tokens: int) -> bool:
        """Whether the texts fit, including the padding after their new tokens."""
        return (
            len(rows) <= self.rows
            and max(row.new for row in rows) <= self.width
            and max(row.start for row in rows) + self.width <= self.pages * page_tokens
        )


def buckets(max_rows: int, max_width: int, max_pages: int, max_tokens: int) -> list[StepSize]:
    """Return the sizes that steps are padded to, cheapest first.

    Rows and pages are powers of 2, up to the limits. Widths are 1 more than powers of 2, because a
    step that verifies k draft tokens has k + 1 new tokens. The limits themselves are included.
    """
    rows = {*_powers(max_rows), max_rows}
    pages = {*_powers(max_pages), max_pages}
    widths = {1, max_width, *(1 + power for power in _powers(max_width - 1))}
    sizes = [StepSize(r, w, p, r * w) for r, w, p in product(rows, widths, pages)]
    fitting = [size for size in sizes if size.tokens <= max_tokens]
    return sorted(fitting, key=lambda size: (size.tokens, size.pages, size.rows))


def _powers(limit: int) -> list[int]:
    return [1 << n for n in range(limit.bit_length()) if 1 << n <= limit]


class PagedBatch:
    """The integers of one step, as views of one tensor.

    ids, positions, slots: [tokens]. A slot is a token's place in the pool, counted page by page.
    ends: [rows + 1], index of each row's first token in the step, then the number of tokens.
    lengths: [rows], number of tokens of each text, including new ones.
    tables: [rows, pages], pages of each text.
    wanted: [tokens], starts with the indices of the tokens whose logits are needed.
    """

    def __init__(self, memory: torch.Tensor, size: StepSize) -> None:
        """Use `memory`, int32 [at least size.numbers] on any device, without initializing it."""
        self.size = size
        rows, _, pages, tokens = size
        parts = torch.split(
            memory[: size.numbers],
            [tokens, tokens, tokens, rows + 1, rows, rows * pages, tokens],
        )
        self.ids, self.positions, self.slots, self.ends, self.lengths = parts[:5]
        self.tables, self.wanted = parts[5].view(rows, pages), parts[6]

    @cached_property
    def page_ends(self) -> torch.Tensor:
        """Offsets at which each row's pages start in one list of all pages: [rows + 1].

        The last element is the list's length.
        """
        page = torch.arange(self.size.rows + 1, dtype=torch.int32, device=self.tables.device)
        return page * self.size.pages


def write(
    batch: PagedBatch, ids: NDArray[np.int64], rows: Sequence[PagedRow], page_tokens: int
) -> None:
    """Write a step into a batch on the CPU. ids: [all rows' new tokens].

    An even batch is padded twice: each row after its new tokens, and the batch with unused rows.
    """
    size = batch.size
    arrays = [part.numpy() for part in (batch.ids, batch.positions, batch.slots, batch.ends)]
    token_ids, positions, slots, ends = arrays
    lengths, tables = batch.lengths.numpy(), batch.tables.numpy()
    for array in (token_ids, positions, tables):
        array[:] = 0
    slots[:] = PADDING
    lengths[:] = size.width
    if size.is_even:
        ends[:] = np.arange(size.rows + 1) * size.width
        positions.reshape(-1, size.width)[:] = np.arange(size.width)
    at, read = 0, 0
    for i, row in enumerate(rows):
        width = size.width if size.is_even else row.new
        new = slice(at, at + row.new)
        where = np.arange(row.start, row.start + width)
        table = np.asarray(row.pages[: size.pages])
        token_ids[new] = ids[read : read + row.new]
        positions[at : at + width] = where
        real = where[: row.new]
        slots[new] = table[real // page_tokens] * page_tokens + real % page_tokens
        tables[i, : len(table)] = table
        lengths[i] = row.start + width
        at += width
        read += row.new
        if not size.is_even:
            ends[i + 1] = at
    if not size.is_even:
        ends[0] = 0


def make_batch(
    ids: NDArray[np.int64], rows: Sequence[PagedRow], page_tokens: int, device: torch.device
) -> PagedBatch:
    """Return a batch of exactly these rows on a device. ids: [all rows' new tokens]."""
    pages = max(len(row.pages) for row in rows)
    size = StepSize(len(rows), max(row.new for row in rows), pages, len(ids))
    memory = torch.empty(size.numbers, dtype=torch.int32)
    write(PagedBatch(memory, size), ids, rows, page_tokens)
    return PagedBatch(memory.to(device), size)


def places(rows: Sequence[PagedRow], width: int) -> NDArray[np.int64]:
    """Return the index of each new token in an even batch: [all rows' new tokens]."""
    return np.concatenate([np.arange(row.new) + i * width for i, row in enumerate(rows)])
