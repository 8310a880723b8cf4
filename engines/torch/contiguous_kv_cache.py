"""The KV cache: keys and values of past tokens, kept for later calls.

An entry holds one sequence, contiguous in memory, so that attention reads it in place. Memory is
counted in blocks. A running call owns blocks for the maximum length that it may reach. An idle
entry owns blocks for the tokens that it holds. Branches of a call borrow free blocks.

The loop sends its growing context once per round. So a typical call finds an idle entry that holds
all but its last few tokens, and takes it over.
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
_GLANCE = 64  # number of tokens that `may_share` compares
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
    capacity: int = 0  # of `layers`, in tokens
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
        differs = self.tokens[:n] != tokens[:n]
        return int(differs.argmax()) if differs.any() else n

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
    """An engine's entries, which share one limit. Only the engine's thread may use it.

    The limit counts tokens. Memory use may be up to twice as much (`GROWTH`), so that
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
        idle = source if source is not None and not source.busy else None
        entry = None
        if idle is None or idle.length - shared > self._block:
            entry = self._copy_prefix(source, shared, max_length)
        if entry is None and idle is not None:
            entry = self._take_over(idle, shared, max_length)
        if entry is None:
            return None
        entry.tokens = tokens
        entry.length = shared
        entry.adapter = adapter
        entry.busy = True
        entry.blocks = self.blocks_for(max_length)
        entry.reused_blocks = shared // self._block  # whole blocks
        return entry

    def needs_lent_blocks(self, max_length: int) -> bool:
        """Whether a call of this length needs blocks that branches hold, so that they must end."""
        lent = any(entry.lent_blocks for entry in self._entries)
        return lent and self.blocks_for(max_length) > self._available(keep=None)

    def branch_room(self, branches: int, tokens: int) -> int:
        """Return how many tokens fit for up to `branches` branches of `tokens` tokens each.

        Evicts stale texts if necessary, but no text that another call is likely to continue,
        because branches are speculative.
        """
        wanted = self.blocks_for(branches * tokens)
        self._evict_stale(wanted)
        return min(wanted, self._free_blocks) * self._block

    def branch_kv(self, entry: KVEntry, leaves: NDArray[np.int64], tokens: int) -> BranchKV:
        """Lend blocks to a call for branches of `tokens` tokens each, until the call ends.

        leaves: [branches], number of the entry's tokens that each branch continues.
        """
        entry.lent_blocks = self.blocks_for(len(leaves) * tokens)
        return BranchKV(self.shape, len(leaves), tokens)

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
        """Forget an entry and its blocks."""
        self._entries.remove(entry)

    def _longest_prefix(self, tokens: Tokens, adapter: int) -> tuple[KVEntry | None, int]:
        """Return the entry with the longest common prefix, and the prefix's length.

        Among equals, prefer an idle entry, then a short one. So a sequence finds its own entry, not
        one whose other tokens another sequence needs. Entries that can't beat the best one so far
        aren't compared in full.
        """
        best: KVEntry | None = None
        longest = 0
        for entry in reversed(self._entries):
            wins_tie = best is not None and (entry.busy, entry.length) < (best.busy, best.length)
            needed = longest if wins_tie else longest + 1
            if entry.adapter == adapter and entry.may_share(tokens, needed):
                shared = entry.shared_prefix(tokens)
                if shared >= needed:
                    best, longest = entry, shared
        return best, longest

    def _copy_prefix(self, source: KVEntry | None, shared: int, max_length: int) -> KVEntry | None:
        """Return a new entry that starts with `shared` tokens of `source`; None: too few blocks."""
        if not self._free_up(self.blocks_for(max_length), keep=source):
            return None
        entry = KVEntry(length=shared)
        entry.resize(self.shape, self._capacity(max_length), source)
        self._entries.append(entry)
        return entry

    def _take_over(self, entry: KVEntry, shared: int, max_length: int) -> KVEntry | None:
        """Continue an idle entry after its first `shared` tokens; None: too few blocks."""
        if not self._free_up(self.blocks_for(max_length) - entry.blocks, keep=entry):
            return None
        entry.length = shared
        if entry.capacity < max_length:
            entry.resize(self.shape, self._capacity(max_length))
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
        if self._available(keep) < blocks:
            return False
        for entry in list(self._entries):
            if self._free_blocks >= blocks:
                break
            if not entry.busy and entry is not keep:
                self.drop(entry)
        return True

    def _evict_stale(self, blocks: int) -> None:
        """Evict idle entries that no call is likely to continue, until `blocks` are free."""
        before = time.monotonic() - STALE_SECONDS
        for entry in [e for e in self._entries if not e.busy and e.idle_since < before]:
            if self._free_blocks >= blocks:
                break
            self.drop(entry)

    def _available(self, keep: KVEntry | None) -> int:
        """Return the number of blocks that are free or held by idle entries other than `keep`."""
        idle = [e for e in self._entries if not e.busy and e is not keep]
        return self._free_blocks + sum(e.blocks for e in idle)

    @property
    def _free_blocks(self) -> int:
        return self.total_blocks - sum(e.blocks + e.lent_blocks for e in self._entries)
