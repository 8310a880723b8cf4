"""Bookkeeping of a KV cache: which entry holds which tokens, and which calls may use it.

An entry holds one sequence. Memory is counted in blocks. A running call owns blocks for the maximum
length that it may reach. An idle entry owns blocks for the tokens that it holds. Branches of a call
borrow free blocks.

The loop sends its growing context once per round. So a typical call finds an idle entry that holds
all but its last few tokens, and takes it over.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
_NO_TOKENS: Tokens = np.empty(0, np.int64)
_GLANCE = 64  # number of tokens that `may_share` compares
STALE_SECONDS = 30.0  # after this time, no call is likely to continue an idle text


class Owner(NamedTuple):
    """The LoRA adapter (0: none) and the cache salt of the calls that may share an entry."""

    adapter: int = 0
    salt: int = 0


NO_OWNER = Owner()


@dataclass(eq=False)
class KVEntry:
    """One sequence's keys and values, for `tokens[:length]`."""

    tokens: Tokens = field(default_factory=lambda: _NO_TOKENS)
    length: int = 0
    blocks: int = 0
    busy: bool = False
    reused_blocks: int = 0  # by the running call
    lent_blocks: int = 0  # to the call's branches
    idle_since: float = 0.0  # monotonic clock, in seconds
    owner: Owner = NO_OWNER

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


Entry = TypeVar("Entry", bound=KVEntry)


class BranchKV(ABC):
    """Keys and values of the branches' own tokens, until the call ends.

    Attributes:
        length: number of tokens stored per branch.

    """

    length = 0

    @abstractmethod
    def keep(self, rows: list[int]) -> None:
        """Forget all branches but those at these indices."""


class Segment:
    """The new tokens of one sequence in a step.

    Attributes:
        start, count: the new tokens are `start` to `start + count` of `entry`'s sequence.
        rows: number of tokens at the end that need logits.
        positions: positions of the tokens in the sequence: [count].

    """

    def __init__(self, entry: KVEntry, count: int, rows: int) -> None:
        self.entry = entry
        self.start = entry.length
        self.count = count
        self.rows = rows

    @property
    def positions(self) -> Tokens:
        return np.arange(self.start, self.start + self.count)


class BranchSegment:
    """The next token of each branch after one shared text in a step. All need logits.

    Each branch sees a prefix of the text and its own tokens.

    entry: the shared text's keys and values. leaves: [n], number of its tokens that each branch
    sees.
    """

    def __init__(self, entry: KVEntry, own: BranchKV, leaves: Tokens) -> None:
        self.entry = entry
        self.own = own
        self.leaves = leaves
        self.count = self.rows = len(leaves)

    @property
    def positions(self) -> Tokens:
        return self.leaves + self.own.length


Packed: TypeAlias = Segment | BranchSegment


class KVCache(ABC, Generic[Entry]):
    """An engine's entries, which share one limit. Only the engine's thread may use it."""

    def __init__(self, max_tokens: int, block_tokens: int) -> None:
        self._block = block_tokens
        self.total_blocks = max_tokens // block_tokens
        self._entries: list[Entry] = []  # least recently used first

    @abstractmethod
    def _new_entry(self, source: Entry | None, shared: int, max_length: int) -> Entry | None:
        """Return a new entry that starts with `shared` tokens of `source`.

        Its blocks are free. None: something else is short.
        """

    @abstractmethod
    def _cut(self, entry: Entry, shared: int, max_length: int) -> None:
        """Keep the first `shared` tokens of an idle entry, and make room for `max_length`."""

    @abstractmethod
    def branch_kv(self, entry: Entry, leaves: Tokens, tokens: int) -> BranchKV:
        """Lend blocks to a call for branches of `tokens` tokens each, until the call ends.

        leaves: [branches], number of the entry's tokens that each branch continues.
        """

    def blocks_for(self, tokens: int) -> int:
        return math.ceil(tokens / self._block)

    def acquire(
        self, tokens: Tokens, reusable: int, max_length: int, owner: Owner = NO_OWNER
    ) -> Entry | None:
        """Return an entry for a call on `tokens`, or None if there aren't enough free blocks.

        tokens: the call's own array. The entry keeps a reference to it.
        reusable: number of leading tokens that may come from other calls.
        max_length: maximum length that the call may reach, in tokens.
        owner: only keys and values of the same owner are reused.
        """
        source, shared = self._longest_prefix(tokens[:reusable], owner)
        idle = source if source is not None and not source.busy else None
        entry = None
        if idle is None or idle.length - shared > self._block:
            if self._free_up(self.blocks_for(max_length), keep=source):
                entry = self._new_entry(source, shared, max_length)
            if entry is not None:
                self._entries.append(entry)
        if (
            entry is None
            and idle is not None
            and self._free_up(self.blocks_for(max_length) - idle.blocks, keep=idle)
        ):
            entry = idle
            self._cut(entry, shared, max_length)
        if entry is None:
            return None
        entry.tokens = tokens
        entry.length = shared
        entry.owner = owner
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

    def release(self, entry: Entry) -> None:
        """Keep the entry of a call that has ended for later calls."""
        self._entries.remove(entry)
        entry.busy = False
        entry.lent_blocks = 0
        entry.idle_since = time.monotonic()
        entry.blocks = self.blocks_for(entry.length)
        if entry.length:
            self._entries.append(entry)

    def drop(self, entry: Entry) -> None:
        """Forget an entry and its blocks."""
        self._entries.remove(entry)

    def _longest_prefix(self, tokens: Tokens, owner: Owner) -> tuple[Entry | None, int]:
        """Return the owner's entry with the longest common prefix, and the prefix's length.

        Among equals, prefer an idle entry, then a short one. So a sequence finds its own entry, not
        one whose other tokens another sequence needs. Entries that can't beat the best one so far
        aren't compared in full.
        """
        best: Entry | None = None
        longest = 0
        for entry in reversed(self._entries):
            wins_tie = best is not None and (entry.busy, entry.length) < (best.busy, best.length)
            needed = longest if wins_tie else longest + 1
            if entry.owner == owner and entry.may_share(tokens, needed):
                shared = entry.shared_prefix(tokens)
                if shared >= needed:
                    best, longest = entry, shared
        return best, longest

    def _free_up(self, blocks: int, keep: Entry | None) -> bool:
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
        for entry in self._stale():
            if self._free_blocks >= blocks:
                break
            self.drop(entry)

    def _stale(self) -> list[Entry]:
        before = time.monotonic() - STALE_SECONDS
        return [e for e in self._entries if not e.busy and e.idle_since < before]

    def _available(self, keep: Entry | None) -> int:
        """Return the number of blocks that are free or held by idle entries other than `keep`."""
        idle = [e for e in self._entries if not e.busy and e is not keep]
        return self._free_blocks + sum(e.blocks for e in idle)

    @property
    def _free_blocks(self) -> int:
        return self.total_blocks - sum(e.blocks + e.lent_blocks for e in self._entries)
