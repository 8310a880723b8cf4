"""An index of every n-gram of a growing row of tokens and of what followed it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

ROOT = 0  # the node of no token


class Match(NamedTuple):
    """What followed an earlier occurrence of the row's last ``ngram_size`` tokens."""

    tokens: list[int]
    ngram_size: int


class NgramIndex:
    """Finds what followed the row's tail before, longest n-gram first; never rescans the row.

    Each n-gram is a node of a trie that is read backwards. A node's key is the n-gram with one
    token less that ends at the same position, and the token before it. An n-gram that occurred once
    is a leaf. It represents the longer n-grams that end there, which the row itself shows. They
    become nodes when it occurs again. So a token costs one step for each n-gram that it repeats,
    and one more, regardless of the row's length and of the n-gram sizes.

    keep_all: keep every occurrence, and choose the newest one that a whole draft follows. Otherwise
    only the newest one is kept, or with use_oldest the oldest.
    use_oldest: draft what followed the oldest occurrence, which most tokens follow.

    Source: Saxena, "Prompt Lookup Decoding", 2023; the switches are the same as in TensorRT-LLM's
    ``NGramDecodingConfig``.

    >>> index = NgramIndex(max_ngram_size=2)
    >>> index.extend([1, 2, 3, 4, 1, 2])
    >>> index.lookup(limit=3)
    Match(tokens=[3, 4, 1], ngram_size=2)
    """

    def __init__(
        self, max_ngram_size: int, *, keep_all: bool = True, use_oldest: bool = True
    ) -> None:
        self._keep_all = keep_all and not use_oldest
        self._use_oldest = use_oldest
        self._max_ngram_size = max_ngram_size
        self._row = array("i")
        self._nodes: dict[int, int] = {}  # key of (shorter n-gram's node, token before it) -> node
        self._follower = array("i", [0])  # node -> position of the token after its occurrence
        self._once = bytearray(1)  # node -> whether its n-gram occurred once
        # The position after the oldest occurrence of the tail's longest n-gram; 0: none, or
        # newer ones matter. While the row repeats what follows there, it brings no new n-gram.
        self._copied = 0
        # (node, position after an occurrence) -> position after the occurrence before
        self._earlier: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._row)

    def extend(self, tokens: Iterable[int]) -> None:
        row = self._row
        for token in tokens:
            if not self._copied:
                self._add_ngrams()  # they end here, and now a token follows them
            if self._copied:
                self._copied = self._copied + 1 if row[self._copied] == token else 0
            row.append(token)

    def lookup(self, limit: int, most_matching: int = 0) -> Match | None:
        """Return at most ``limit`` tokens that followed the row's tail before.

        most_matching: limit of the matching tokens to count; n-grams may be shorter.
        """
        row, end = self._row, len(self._row)
        node, size = ROOT, 0
        while size < min(self._max_ngram_size, end):
            longer = self._nodes.get(_key(node, row[end - size - 1]))
            if longer is None:
                break
            node, size = longer, size + 1
            if self._once[node]:
                size = self._matching(self._follower[node], size, self._max_ngram_size)
                break
        if node == ROOT:
            return None
        start = self._with_whole_draft(node, limit)
        size = self._matching(start, size, most_matching)
        return Match(row[start : start + limit].tolist(), size)

    def _matching(self, follower: int, size: int, most: int) -> int:
        """Count the tokens before a position that equal the row's last ones, at least ``size``."""
        row, end = self._row, len(self._row)
        most = min(most, follower)
        while size < most and row[follower - size - 1] == row[end - size - 1]:
            size += 1
        return size

    def _add_ngrams(self) -> None:
        """Add the n-grams at the row's end, up to the first new one."""
        row, nodes, follower = self._row, self._nodes, self._follower
        position, node = len(row), ROOT
        for size in range(1, min(self._max_ngram_size, position) + 1):
            key = _key(node, row[position - size])
            longer = nodes.get(key)
            if longer is None:
                self._add_leaf(key, position)
                return
            node = longer
            if self._once[node]:
                self._open(node, size)
            if self._keep_all:
                self._earlier[node, position] = follower[node]
            if not self._use_oldest:
                follower[node] = position
            elif size == self._max_ngram_size:
                self._copied = follower[node]

    def _open(self, leaf: int, size: int) -> None:
        """Make a leaf of the longer n-gram that this one represented."""
        self._once[leaf] = False
        follower = self._follower[leaf]
        if size < min(self._max_ngram_size, follower):
            self._add_leaf(_key(leaf, self._row[follower - size - 1]), follower)

    def _add_leaf(self, key: int, follower: int) -> None:
        self._nodes[key] = len(self._follower)
        self._follower.append(follower)
        self._once.append(True)

    def _with_whole_draft(self, node: int, limit: int) -> int:
        """Go back to an occurrence that ``limit`` tokens follow, in at most ``limit`` steps."""
        start = self._follower[node]
        while self._keep_all and len(self._row) - start < limit:
            earlier = self._earlier.get((node, start))
            if earlier is None:
                break
            start = earlier
        return start


def _key(node: int, token: int) -> int:
    """Return a key of both; cheaper than a pair."""
    return node << 32 | token
