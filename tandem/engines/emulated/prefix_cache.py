"""Model KV block reuse: find the prefix of a text that doesn't have to be computed again."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort

import numpy as np

from tandem.engines.request import Ids

_BYTES = 4  # per token


class PrefixCache:
    """The most recent texts within a token limit. The least recently used text is evicted first.

    Running calls use no capacity, so they never wait for it. Thread-safe.
    """

    def __init__(self, max_tokens: int, block_tokens: int) -> None:
        self._block = block_tokens
        self._total_blocks = max_tokens // block_tokens
        # Sorted as bytes: the text with the longest common prefix is always a neighbor.
        self._in_order: list[bytes] = []
        self._copies: dict[bytes, int] = {}  # count of each text, least recently used first
        self._used_blocks = 0
        self._lock = threading.Lock()

    def reuse(self, ids: Ids, reusable: int) -> int:
        """Return how many of the first `reusable` tokens of ids [n] are cached.

        A text that the call continues is removed from the cache. `remember` adds it again.
        """
        wanted = ids[:reusable].tobytes()
        with self._lock:
            place = bisect_left(self._in_order, wanted)
            neighbors = self._in_order[max(0, place - 1) : place + 1]
            shared, text = max(
                ((_shared_tokens(text, wanted), text) for text in neighbors), default=(0, b"")
            )
            if shared and len(text) // _BYTES - shared <= self._block:
                self._forget_one(text)
            return shared

    def remember(self, ids: Ids) -> None:
        """Store a text [n]. Each call that ends with this text adds one copy."""
        text = ids.tobytes()
        with self._lock:
            copies = self._copies.pop(text, 0)
            if not copies:
                insort(self._in_order, text)
            self._copies[text] = copies + 1
            self._used_blocks += self._blocks_of(text)
            while self._used_blocks > self._total_blocks:
                self._forget_one(next(iter(self._copies)))

    def _forget_one(self, text: bytes) -> None:
        self._copies[text] -= 1
        if not self._copies[text]:
            del self._copies[text]
            del self._in_order[bisect_left(self._in_order, text)]
        self._used_blocks -= self._blocks_of(text)

    def _blocks_of(self, text: bytes) -> int:
        return -(-len(text) // (_BYTES * self._block))


def _shared_tokens(one: bytes, other: bytes) -> int:
    n = min(len(one), len(other)) // _BYTES
    differs = np.frombuffer(one, np.int32, n) != np.frombuffer(other, np.int32, n)
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
