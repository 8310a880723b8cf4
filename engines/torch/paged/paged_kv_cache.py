"""The paged KV cache: texts with a common prefix share its pages."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tandem.engines.torch.contiguous_kv_cache import BranchKV, KVCache, KVEntry, KVShape, Tokens
from tandem.engines.torch.paged.page_pool import PADDING, PagePool


@dataclass(eq=False)
class PagedEntry(KVEntry):
    """One sequence's keys and values, stored in pages."""

    pages: list[int] = field(default_factory=list)
    lent_pages: list[int] = field(default_factory=list)  # to the call's branches


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
    """All entries of an engine, in one pool of pages. A block is a page.

    Only full pages are shared. The last page of a common prefix is copied if it isn't full.
    """

    def __init__(
        self, shape: KVShape, max_tokens: int, block_tokens: int, max_seq_len: int
    ) -> None:
        super().__init__(shape, max_tokens, block_tokens, max_seq_len)
        self.pool = PagePool(shape, self.total_blocks, block_tokens)
        self._waiting_for = 0  # pages that the first waiting call could not get

    @property
    def used_blocks(self) -> int:
        return self.total_blocks - self._free_blocks - sum(e.lent_blocks for e in self._entries)

    @property
    def _free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def lent_too_much(self) -> bool:
        """Whether a call waits for pages that branches hold."""
        lent = any(entry.lent_blocks for entry in self._entries)
        return lent and self._waiting_for > self._available(keep=None)

    def acquire(
        self,
        tokens: Tokens,
        reusable: int,
        max_length: int,
        adapter: int = 0,  # noqa: ARG002 (the settings reject adapters with pages)
    ) -> PagedEntry | None:
        source, shared = self._longest_prefix(tokens[:reusable])
        assert source is None or isinstance(source, PagedEntry)
        idle = source is not None and not source.busy
        entry = None
        if not (idle and source and source.length - shared <= self._block):
            entry = self._share(source, shared, max_length)
        if entry is None and idle and source:
            entry = self._cut(source, shared, max_length)
        self._waiting_for = 0 if entry else self.blocks_for(max_length)
        if entry is None:
            return None
        entry.length = shared
        self._start(entry, tokens, shared, max_length)
        return entry

    def lend(self, entry: KVEntry, branches: int, tokens: int) -> int:  # noqa: ARG002
        each = self._pages_of_a_branch(tokens)
        for old in self._stale():
            if self._free_blocks >= branches * each:
                break
            self._forget(old)
        return min(branches, self._free_blocks // each) * tokens

    def branch_kv(self, entry: KVEntry, leaves: NDArray[np.int64], tokens: int) -> PagedBranchKV:
        assert isinstance(entry, PagedEntry)
        each = self._pages_of_a_branch(tokens)
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
        assert isinstance(entry, PagedEntry)
        self._end_loan(entry)
        self._entries.remove(entry)
        entry.busy = False
        entry.idle_since = time.monotonic()
        self._shorten(entry, self.blocks_for(entry.length))
        if entry.length:
            self._entries.append(entry)

    def drop(self, entry: KVEntry) -> None:
        self._forget(entry)

    def _share(self, source: PagedEntry | None, shared: int, max_length: int) -> PagedEntry | None:
        """Return a new entry that shares `shared` tokens of `source`; None: not enough pages."""
        full = shared // self._block
        common = source.pages[:full] if source else []
        if not self._make_free(self.blocks_for(max_length) - full, keep=source):
            return None
        self.pool.share(common)
        own = self.pool.take(self.blocks_for(max_length) - full)
        if source and shared % self._block:
            self.pool.copy(source.pages[full : full + 1], own[:1])
        entry = PagedEntry(pages=[*common, *own])
        self._entries.append(entry)
        return entry

    def _cut(self, entry: PagedEntry, shared: int, max_length: int) -> PagedEntry | None:
        """Continue an idle entry after its first `shared` tokens; None: not enough pages."""
        full, parted = divmod(shared, self._block)
        copied = parted > 0 and self.pool.is_shared(entry.pages[full])
        kept = full + (parted > 0 and not copied)
        freed = self.pool.freed_by([entry.pages[kept + copied :]])
        wanted = self.blocks_for(max_length) - kept
        if self._available(keep=entry) + freed < wanted:
            return None
        self._shorten(entry, kept + copied)
        self._make_free(wanted, keep=entry)
        own = self.pool.take(wanted)
        if copied:
            self.pool.copy(entry.pages[full:], own[:1])
            self._shorten(entry, kept)
        entry.pages += own
        return entry

    def _available(self, keep: KVEntry | None) -> int:
        """Return the number of pages that are free or held by idle entries other than `keep`."""
        idle = [e for e in self._entries if not e.busy and e is not keep]
        return self.pool.num_free + self.pool.freed_by([_pages(entry) for entry in idle])

    def _make_free(self, pages: int, keep: KVEntry | None) -> bool:
        """Evict idle entries, least recently used first, until `pages` are free.

        If that isn't possible, evict none and return False. `keep` is never evicted.
        """
        if self._available(keep) < pages:
            return False
        for entry in list(self._entries):
            if self.pool.num_free >= pages:
                break
            if not entry.busy and entry is not keep:
                self._forget(entry)
        return True

    def _forget(self, entry: KVEntry) -> None:
        assert isinstance(entry, PagedEntry)
        self._end_loan(entry)
        self._entries.remove(entry)
        self.pool.give_back(entry.pages)
        entry.pages = []

    def _shorten(self, entry: PagedEntry, count: int) -> None:
        self.pool.give_back(entry.pages[count:])
        entry.pages = entry.pages[:count]
        entry.blocks = count

    def _end_loan(self, entry: PagedEntry) -> None:
        self.pool.give_back(entry.lent_pages)
        entry.lent_pages = []
        entry.lent_blocks = 0

    def _pages_of_a_branch(self, tokens: int) -> int:
        """Return the maximum number of own pages that a branch of `tokens` tokens may need."""
        return self.blocks_for(self._block - 1 + tokens)


def _pages(entry: KVEntry) -> list[int]:
    assert isinstance(entry, PagedEntry)
    return entry.pages
