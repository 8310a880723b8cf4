"""A plain model of block reuse: which beginnings of a text need not be computed again."""

from __future__ import annotations

import math
import threading

import numpy as np

from engines.request import Ids

# Texts are found by their first tokens; a shorter beginning in common is not looked for.
_KEY_TOKENS = 4


class PrefixCache:
    """The last texts that fit in the cap, forgotten least recently used first.

    Calls under way take no room, so none ever waits for it. May be used from any thread.
    """

    def __init__(self, max_tokens: int, block_tokens: int) -> None:
        self._block = block_tokens
        self.total_blocks = max_tokens // block_tokens
        self._texts: dict[int, Ids] = {}  # by number, least recently used first
        self._numbers: dict[bytes, list[int]] = {}  # of texts that begin so, oldest first
        self._next_number = 0
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
            number, shared = self._longest_prefix(ids[:reusable])
            if shared and len(self._texts[number]) - shared <= self._block:
                self._forget(number)
            return shared

    def remember(self, ids: Ids) -> None:
        """Keep a text [n]."""
        with self._lock:
            self._next_number += 1
            self._texts[self._next_number] = ids
            self._numbers.setdefault(_key(ids), []).append(self._next_number)
            self._used_blocks += self.blocks_for(len(ids))
            while self._used_blocks > self.total_blocks:
                self._forget(next(iter(self._texts)))

    def _longest_prefix(self, ids: Ids) -> tuple[int, int]:
        """Return the number of the text that shares most with ids [n], and how much that is."""
        best, longest = 0, 0
        for number in reversed(self._numbers.get(_key(ids), [])):
            shared = _shared_prefix(self._texts[number], ids)
            if shared > longest:
                best, longest = number, shared
            if longest == len(ids):
                break
        return best, longest

    def _forget(self, number: int) -> None:
        text = self._texts.pop(number)
        self._used_blocks -= self.blocks_for(len(text))
        key = _key(text)
        self._numbers[key].remove(number)
        if not self._numbers[key]:
            del self._numbers[key]


def _key(ids: Ids) -> bytes:
    return ids[:_KEY_TOKENS].tobytes()


def _shared_prefix(one: Ids, other: Ids) -> int:
    n = min(len(one), len(other))
    differs = one[:n] != other[:n]
    first = int(np.argmax(differs))
    return first if differs[first] else n
