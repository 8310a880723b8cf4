"""The paged KV cache: texts with a common prefix share its pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.engines.torch.contiguous_kv_cache import BranchKV, KVCache, KVEntry, KVShape
from tandem.engines.torch.paged.page_pool import PADDING, PagePool


class PagedBranchKV(BranchKV):
    """Pages of a call's branches until the call ends: the shared text's, then the branch's own.

    Attributes:
        length: number of tokens of each branch after the shared text.
        tables: pages of each branch, padded: [branches, pages].

    """

    def __init__(self, tables: NDArray[np.int32]) -> None:
        self.length = 0
        self.layers = []
        self.tables = tables

    def keep(self, rows: list[int]) -> None:
        self.tables = self.tables[rows]


class PagedKVCache(KVCache):
    """An engine's entries, which share one pool of pages. A block is a page.

    Only full pages are shared. The last page of a common prefix is copied if it isn't full.
    """

    def __init__(
        self, shape: KVShape, max_tokens: int, block_tokens: int, max_seq_len: int
    ) -> None:
        super().__init__(shape, max_tokens, block_tokens, max_seq_len)
        self.pool = PagePool(shape, self.total_blocks, block_tokens)

    def branch_room(self, branches: int, tokens: int) -> int:
        each = self._max_branch_pages(tokens)
        self._evict_stale(branches * each)
        return min(branches, self._free_blocks // each) * tokens

    def branch_kv(self, entry: KVEntry, leaves: NDArray[np.int64], tokens: int) -> PagedBranchKV:
        each = self._max_branch_pages(tokens)
        entry.lent_pages = self.pool.take(each * len(leaves))
        entry.lent_blocks = len(entry.lent_pages)
        full = leaves // self._block
        tables = np.full((len(leaves), int(full.max()) + each), PADDING, np.int32)
        own = np.array(entry.lent_pages, np.int32).reshape(len(leaves), each)
        for table, count, new in zip(tables, full, own, strict=True):
            table[:count] = entry.pages[:count]
            table[count : count + each] = new
        parted = np.flatnonzero(leaves % self._block)
        self.pool.copy([entry.pages[full[i]] for i in parted], own[parted, 0].tolist())
        return PagedBranchKV(tables)

    def release(self, entry: KVEntry) -> None:
        self._end_loan(entry)
        self._shorten(entry, self.blocks_for(entry.length))
        super().release(entry)

    def drop(self, entry: KVEntry) -> None:
        self._end_loan(entry)
        self._entries.remove(entry)
        self.pool.give_back(entry.pages)
        entry.pages = []

    def _copy_prefix(self, source: KVEntry | None, shared: int, max_length: int) -> KVEntry | None:
        full = shared // self._block
        common = source.pages[:full] if source else []
        if not self._free_up(self.blocks_for(max_length) - full, keep=source):
            return None
        self.pool.share(common)
        own = self.pool.take(self.blocks_for(max_length) - full)
        if source and shared % self._block:
            self.pool.copy(source.pages[full : full + 1], own[:1])
        entry = KVEntry(pages=[*common, *own])
        self._entries.append(entry)
        return entry

    def _take_over(self, entry: KVEntry, shared: int, max_length: int) -> KVEntry | None:
        full, parted = divmod(shared, self._block)
        copied = parted > 0 and self.pool.is_shared(entry.pages[full])
        kept = full + (parted > 0 and not copied)
        freed = self.pool.count_freed([entry.pages[kept + copied :]])
        wanted = self.blocks_for(max_length) - kept
        if self._available(keep=entry) + freed < wanted:
            return None
        self._shorten(entry, kept + copied)
        self._free_up(wanted, keep=entry)
        own = self.pool.take(wanted)
        if copied:
            self.pool.copy(entry.pages[full:], own[:1])
            self._shorten(entry, kept)
        entry.pages += own
        return entry

    def _shorten(self, entry: KVEntry, count: int) -> None:
        self.pool.give_back(entry.pages[count:])
        entry.pages = entry.pages[:count]
        entry.blocks = count

    def _end_loan(self, entry: KVEntry) -> None:
        self.pool.give_back(entry.lent_pages)
        entry.lent_pages = []
        entry.lent_blocks = 0

    def _max_branch_pages(self, tokens: int) -> int:
        """Return the maximum number of own pages that a branch of `tokens` tokens may need."""
        return self.blocks_for(self._block - 1 + tokens)

    def _blocks_held_only_by(self, entries: Sequence[KVEntry]) -> int:
        return self.pool.count_freed([entry.pages for entry in entries])

    @property
    def _free_blocks(self) -> int:
        return self.pool.num_free
