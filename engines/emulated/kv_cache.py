"""A plain model of block reuse: which beginnings of a text need not be computed again."""

from __future__ import annotations

import math
import threading

import numpy as np

from engines.request import Ids


class PrefixCache:
    """The last texts that fit in the cap, forgotten least recently used first.

    Calls under way take no room, so none ever waits for it. May be used from any thread.
    """

    def __init__(self, max_tokens: int, block_tokens: int) -> None:
        self._block = block_tokens
        self.total_blocks = max_tokens // block_tokens
        self._texts: list[Ids] = []  # least recently used first
        self._used_blocks = 0
        self._lock = threading.Lock()

    def blocks_for(self, tokens: int) -> int:
        """How many blocks that many tokens fill."""
        return math.ceil(tokens / self._block)

    def reuse(self, ids: Ids, reusable: int) -> int:
        """Return how many of the first `reusable` of ids [n] are remembered.

        A text that the call continues is taken over: `remember` brings it back.
        """
        with self._lock:
            text, shared = self._longest_prefix(ids[:reusable])
            if text is not None and len(text) - shared <= self._block:
                self._forget(text)
            return shared

    def remember(self, ids: Ids) -> None:
        """Keep a text [n]."""
        with self._lock:
            self._texts.append(ids)
            self._used_blocks += self.blocks_for(len(ids))
            while self._used_blocks > self.total_blocks:
                self._forget(self._texts[0])

    def _longest_prefix(self, ids: Ids) -> tuple[Ids | None, int]:
        best, longest = None, 0
        for text in reversed(self._texts):
            shared = _shared_prefix(text, ids)
            if shared > longest:
                best, longest = text, shared
            if longest == len(ids):
                break
        return best, longest

    def _forget(self, forgotten: Ids) -> None:
        self._texts = [text for text in self._texts if text is not forgotten]
        self._used_blocks -= self.blocks_for(len(forgotten))


def _shared_prefix(one: Ids, other: Ids) -> int:
    n = min(len(one), len(other))
    if n == 0 or one[0] != other[0]:
        return 0
    differs = one[:n] != other[:n]
    first = int(np.argmax(differs))
    return first if differs[first] else n
