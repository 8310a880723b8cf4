"""The torch engine's KV cache: entries are contiguous, so that attention reads them in place."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass, field

import torch

from tandem.engines.stepping.kv_cache import BranchKV, KVCache, KVEntry, Tokens


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
class TensorEntry(KVEntry):
    """One sequence's keys and values. capacity: size of `layers`, in tokens."""

    layers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    capacity: int = 0

    def resize(self, shape: KVShape, capacity: int, source: TensorEntry | None = None) -> None:
        """Move to new memory. Copy the first `length` tokens of `source` (default: this entry)."""
        old = (source or self).layers
        self.layers = shape.allocate(capacity)  # if this raises, nothing has changed
        self.capacity = capacity
        for (new_key, new_value), (key, value) in zip(self.layers, old, strict=False):
            new_key[:, : self.length] = key[:, : self.length]
            new_value[:, : self.length] = value[:, : self.length]


class TensorBranchKV(BranchKV):
    """Keys and values of the branches' own tokens, until the call ends."""

    def __init__(self, shape: KVShape, branches: int, tokens: int) -> None:
        self.layers = [
            tuple(part.view(len(part), branches, tokens, -1) for part in layer)
            for layer in shape.allocate(branches * tokens)
        ]

    def keep(self, rows: list[int]) -> None:
        self.layers = [tuple(part[:, rows] for part in layer) for layer in self.layers]


class TensorKVCache(KVCache[TensorEntry]):
    """An engine's entries.

    The limit counts tokens. Memory use may be up to twice as much (`GROWTH`), so that entries can
    grow without moving.
    """

    def __init__(
        self, shape: KVShape, max_tokens: int, block_tokens: int, max_seq_len: int
    ) -> None:
        super().__init__(max_tokens, block_tokens)
        self.shape = shape
        self._max_seq_len = max_seq_len

    def _new_entry(self, source: TensorEntry | None, shared: int, max_length: int) -> TensorEntry:
        entry = TensorEntry(length=shared)
        entry.resize(self.shape, self._capacity(max_length), source)
        return entry

    def _cut(self, entry: TensorEntry, shared: int, max_length: int) -> None:
        entry.length = shared
        if entry.capacity < max_length:
            entry.resize(self.shape, self._capacity(max_length))

    def branch_kv(self, entry: TensorEntry, leaves: Tokens, tokens: int) -> TensorBranchKV:
        entry.lent_blocks = self.blocks_for(len(leaves) * tokens)
        return TensorBranchKV(self.shape, len(leaves), tokens)

    def release(self, entry: TensorEntry) -> None:
        super().release(entry)
        # It may have ended long before its limit.
        if entry.length and entry.capacity > 2 * entry.blocks * self._block:
            with contextlib.suppress(RuntimeError, OSError):  # out of memory: don't shrink it
                entry.resize(self.shape, self._capacity(entry.length))

    def _capacity(self, max_length: int) -> int:
        """Return the number of tokens to allocate.

        It is 1.5 times `max_length`, so that growing sequences seldom move.
        """
        return min(
            max(self._max_seq_len, max_length), self.blocks_for(max_length * 3 // 2) * self._block
        )
