"""The KV cache without pages: keys and values of past tokens, kept for later calls.

An entry holds one sequence, contiguous in memory, so that attention reads it in place. Memory is
counted in blocks. A running call owns blocks for the maximum length that it may reach. An idle
entry owns blocks for the tokens that it holds. Branches of a call borrow free blocks.

The loop sends its growing context once per round. So a typical call finds an idle entry that holds
all but its last few tokens, and takes it over. `paged.paged_kv_cache` keeps entries in pages
instead.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
_NO_TOKENS: Tokens = np.empty(0, np.int64)
_GLANCE = 64  # number of tokens to compare first
STALE_SECONDS = 30.0  # after this time, no call is likely to continue an idle text


@dataclass(frozen=True)
class KVShape:
    """Per layer: number of key/value heads, size of a key, size of a value."""

    layers: tuple[tuple[int, int, int], ...]
    dtype: torch.dtype
    device: torch.device

    def allocate(self, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return an uninitialized (key, value) pair per layer, each [heads, tokens, size]."""
        sizes = [n * h * tokens for h, key, value in self.layers for n in (key, value)]
        memory = self._memory(sum(sizes))
        parts = iter(torch.split(memory, sizes))
        return [
            (next(parts).view(h, tokens, key), next(parts).view(h, tokens, value))
            for h, key, value in self.layers
        ]

    def _memory(self, size: int) -> torch.Tensor:
        """Return uninitialized memory [size].

        On a CPU, it is mapped separately, so that it returns to the system when freed. The C
        allocator would leave gaps for entries of ever-changing sizes, and grow without bound.
        """
        if self.device.type != "cpu":
            return torch.empty(size, dtype=self.dtype, device=self.device)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, size * self.dtype.itemsize, flags=flags)
        return torch.frombuffer(pages, dtype=self.dtype)


@dataclass(eq=False)
class KVEntry:
    """One sequence's keys and values, for `tokens[:length]`."""

    layers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    capacity: int = 0
    tokens: Tokens = field(default_factory=lambda: _NO_TOKENS)
    length: int = 0
    blocks: int = 0
    busy: bool = False
    reused_blocks: int = 0  # by the running call
    lent_blocks: int = 0  # to the call's branches
    idle_since: float = 0.0  # monotonic clock, in seconds
    adapter: int = 0  # the LoRA adapter that computed the entry; 0: none

    def shared_prefix(self, tokens: Tokens) -> int:
        n = min(self.length, len(tokens))
        start, size = 0, _GLANCE
        while start < n:
            end = min(n, start + size)
            differs = self.tokens[start:end] != tokens[start:end]
            first = int(differs.argmax())
            if differs[first]:
                return start + first
            start, size = end, 2 * size
        return n

    def may_share(self, tokens: Tokens, count: int) -> bool:
        """Return whether the first `count` tokens may match the entry, judging by the last few.

        Texts that diverge rarely agree again later, so this check rejects nearly all other texts,
        even those with a long common prefix.
        """
        if count > min(self.length, len(tokens)):
            return False
        start = max(0, count - _GLANCE)
        return np.array_equal(self.tokens[start:count], tokens[start:count])

    def resize(self, shape: KVShape, capacity: int, source: KVEntry | None = None) -> None:
        """Move to new memory. Copy the first `length` tokens of `source` (default: this entry)."""
        old = (source or self).layers
        self.layers = shape.allocate(capacity)  # if this raises, nothing has changed
        self.capacity = capacity
        for (new_key, new_value), (key, value) in zip(self.layers, old, strict=False):
            new_key[:, : self.length] = key[:, : self.length]
            new_value[:, : self.length] = value[:, : self.length]


class BranchKV:
    """Keys and values of the branches' own tokens, until the call ends.

    Attributes:
        length: number of tokens stored per branch.

    """

    def __init__(self, shape: KVShape, branches: int, tokens: int) -> None:
        self.length = 0
        self.layers = [
            tuple(part.view(len(part), branches, tokens, -1) for part in layer)
            for layer in shape.allocate(branches * tokens)
        ]

    def keep(self, rows: list[int]) -> None:
        self.layers = [tuple(part[:, rows] for part in layer) for layer in self.layers]


class KVCache:
    """All entries of an engine, within one limit. Only the engine's thread may use it.

    The limit counts tokens. Memory use may be up to twice as much (`UNPAGED_GROWTH`), so that
    entries can grow without moving.
    """

    def __init__(
        self, shape: KVShape, max_tokens: int, block_tokens: int, max_seq_len: int
    ) -> None:
        self.shape = shape
        self._block = block_tokens
        self._max_seq_len = max_seq_len
        self.total_blocks = max_tokens // block_tokens
        self._entries: list[KVEntry] = []  # least recently used first

    def blocks_for(self, tokens: int) -> int:
        return math.ceil(tokens / self._block)

    @property
    def used_blocks(self) -> int:
        return sum(entry.blocks for entry in self._entries)

    @property
    def _free_blocks(self) -> int:
        return self.total_blocks - sum(e.blocks + e.lent_blocks for e in self._entries)

    def acquire(
        self, tokens: Tokens, reusable: int, max_length: int, adapter: int = 0
    ) -> KVEntry | None:
        """Return an entry for a call on `tokens`, or None if there aren't enough free blocks.

        tokens: the call's own array. The entry keeps a reference to it.
        reusable: number of leading tokens that may come from other calls.
        max_length: maximum length that the call may reach, in tokens.
        adapter: the call's LoRA adapter. Keys and values of other adapters aren't reused.
        """
        source, shared = self._longest_prefix(tokens[:reusable], adapter)
        if source is not None and not source.busy and source.length - shared <= self._block:
            return self._take_over(source, tokens, shared, max_length)
        wanted = self.blocks_for(max_length)
        if self._free_up(wanted, keep=source):
            entry = KVEntry(length=shared, adapter=adapter)
            entry.resize(self.shape, self._capacity(max_length), source)
            self._entries.append(entry)
            return self._start(entry, tokens, shared, max_length)
        if source is not None and not source.busy:
            return self._take_over(source, tokens, shared, max_length)
        return None

    def lend(self, entry: KVEntry, branches: int, tokens: int) -> int:
        """Lend blocks for branches of `tokens` tokens each. Return the lent capacity in tokens.

        Only free blocks and blocks of stale texts are lent. Branches are speculative, so they don't
        evict a text that another call is likely to continue.
        """
        wanted = self.blocks_for(branches * tokens)
        for old in self._stale():
            if self._free_blocks >= wanted:
                break
            self._entries.remove(old)
        entry.lent_blocks = max(0, min(wanted, self._free_blocks))
        return entry.lent_blocks * self._block

    def branch_kv(
        self,
        entry: KVEntry,  # noqa: ARG002 (with pages, branches share the entry's)
        leaves: NDArray[np.int64],
        tokens: int,
    ) -> BranchKV:
        """Allocate branches of `tokens` tokens each.

        leaves: [branches], number of the entry's tokens that each branch continues.
        """
        return BranchKV(self.shape, len(leaves), tokens)

    @property
    def lent_too_much(self) -> bool:
        """Whether calls need blocks that are lent to branches. The branches must then end."""
        return self._free_blocks < 0

    def release(self, entry: KVEntry) -> None:
        self._entries.remove(entry)
        entry.busy = False
        entry.lent_blocks = 0
        entry.idle_since = time.monotonic()
        entry.blocks = self.blocks_for(entry.length)
        if not entry.length:
            return
        self._entries.append(entry)
        if entry.capacity > 2 * entry.blocks * self._block:  # it ended long before its limit
            with contextlib.suppress(RuntimeError, OSError):  # out of memory: don't shrink it
                entry.resize(self.shape, self._capacity(entry.length))

    def drop(self, entry: KVEntry) -> None:
        """Forget the entry of a failed call."""
        self._entries.remove(entry)

    def _stale(self) -> list[KVEntry]:
        before = time.monotonic() - STALE_SECONDS
        return [e for e in self._entries if not e.busy and e.idle_since < before]

    def _longest_prefix(self, tokens: Tokens, adapter: int = 0) -> tuple[KVEntry | None, int]:
        """Return the entry with the longest common prefix, preferably an idle one, and its length.

        Entries that can't beat the best one so far aren't compared in full.
        """
        best: KVEntry | None = None
        longest = 0
        for entry in reversed(self._entries):
            as_good_will_do = best is not None and best.busy and not entry.busy
            needed = longest if as_good_will_do else longest + 1
            if entry.adapter == adapter and entry.may_share(tokens, needed):
                shared = entry.shared_prefix(tokens)
                if shared >= needed:
                    best, longest = entry, shared
        return best, longest

    def _take_over(
        self, entry: KVEntry, tokens: Tokens, shared: int, max_length: int
    ) -> KVEntry | None:
        if not self._free_up(self.blocks_for(max_length) - entry.blocks, keep=entry):
            return None
        entry.length = shared
        if entry.capacity < max_length:
            entry.resize(self.shape, self._capacity(max_length))
        return self._start(entry, tokens, shared, max_length)

    def _start(self, entry: KVEntry, tokens: Tokens, shared: int, max_length: int) -> KVEntry:
        entry.tokens = tokens
        entry.busy = True
        entry.blocks = self.blocks_for(max_length)
        entry.reused_blocks = shared // self._block  # whole blocks
        return entry

    def _capacity(self, max_length: int) -> int:
        """Return the number of tokens to allocate.

        It is 1.5 times `max_length`, so that growing sequences seldom move.
        """
        return min(
            max(self._max_seq_len, max_length), self.blocks_for(max_length * 3 // 2) * self._block
        )

    def _free_up(self, blocks: int, keep: KVEntry | None) -> bool:
        """Evict idle entries, least recently used first, until `blocks` are free.

        If that isn't possible, evict none and return False. `keep` is never evicted.
        """
        missing = blocks - (self.total_blocks - self.used_blocks)
        victims: list[KVEntry] = []
        for entry in self._entries:
            if missing <= 0:
                break
            if not entry.busy and entry is not keep:
                victims.append(entry)
                missing -= entry.blocks
        if missing > 0:
            return False
        for entry in victims:
            self._entries.remove(entry)
        return True
