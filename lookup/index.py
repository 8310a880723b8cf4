"""An index of all n-grams in a growing row of tokens, and of the tokens that followed them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

ROOT = 0  # node of the empty n-gram


class Match(NamedTuple):
    """The tokens that followed an earlier occurrence of a text's last ``ngram_size`` tokens."""

    tokens: list[int]
    ngram_size: int


class NgramIndex:
    """Finds the tokens after an earlier occurrence of the longest n-gram at the row's end.

    The n-grams form a trie over reversed tokens: the child of an n-gram's node is the n-gram with
    one more token in front. An n-gram that occurred once is a leaf. Longer n-grams that end at the
    same position have no nodes until the leaf's n-gram occurs again, because the row itself shows
    them. So adding a token takes one step per n-gram that it repeats, and one more, regardless of
    the row's length and the n-gram sizes. The row is never rescanned.

    keep_all: keep all occurrences of an n-gram, and use the newest one that has a whole draft after
    it. If false, only the newest occurrence is kept. Ignored with use_oldest.
    use_oldest: keep only the oldest occurrence, which has the most tokens after it.

    Source: Saxena, "Prompt Lookup Decoding", 2023. The options are the same as in TensorRT-LLM's
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
        self._nodes: dict[int, int] = {}  # _key(shorter n-gram's node, token before it) -> node
        self._follower = array("i", [0])  # node -> position of the token after its occurrence
        self._once = bytearray(1)  # node -> whether its n-gram occurred once
        # With use_oldest: position after the oldest occurrence of the row's last n-gram of maximum
        # size, or 0. While the row repeats the tokens there, it contains no new n-grams.
        self._copied = 0
        # (node, position after an occurrence) -> position after the previous occurrence
        self._earlier: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._row)

    def extend(self, tokens: Iterable[int]) -> None:
        row = self._row
        for token in tokens:
            if not self._copied:
                self._add_ngrams()  # n-grams at the row's end, which `token` follows
            if self._copied:
                self._copied = self._copied + 1 if row[self._copied] == token else 0
            row.append(token)

    def lookup(self, limit: int, most_matching: int = 0) -> Match | None:
        """Return at most ``limit`` tokens that followed an earlier occurrence of the row's end.

        most_matching: count up to this many matching tokens, even beyond the maximum n-gram size.
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
        """Count how many tokens before ``follower`` equal the row's last tokens.

        size: number of tokens that are known to be equal. most: maximum count.
        """
        row, end = self._row, len(self._row)
        most = min(most, follower)
        while size < most and row[follower - size - 1] == row[end - size - 1]:
            size += 1
        return size

    def _add_ngrams(self) -> None:
        """Add the n-grams at the row's end, from the shortest to the first new one."""
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
        """Turn a leaf into an inner node, and add a leaf for the n-gram with one more token."""
        self._once[leaf] = False
        follower = self._follower[leaf]
        if size < min(self._max_ngram_size, follower):
            self._add_leaf(_key(leaf, self._row[follower - size - 1]), follower)

    def _add_leaf(self, key: int, follower: int) -> None:
        self._nodes[key] = len(self._follower)
        self._follower.append(follower)
        self._once.append(True)

    def _with_whole_draft(self, node: int, limit: int) -> int:
        """Return the position after the newest occurrence that at least ``limit`` tokens follow.

        Takes at most ``limit`` steps. If there is no such occurrence, returns the oldest one.
        """
        start = self._follower[node]
        while self._keep_all and len(self._row) - start < limit:
            earlier = self._earlier.get((node, start))
            if earlier is None:
                break
            start = earlier
        return start


def _key(node: int, token: int) -> int:
    """Combine a node and a token into one integer, which is cheaper than a tuple."""
    return node << 32 | token
