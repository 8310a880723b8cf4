"""An index of every n-gram of a growing row of tokens and of what followed it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple

NONE = -1


class Match(NamedTuple):
    """What followed an earlier occurrence of the row's last ``ngram_size`` tokens."""

    tokens: list[int]
    ngram_size: int


class NgramIndex:
    """Finds what followed the row's tail before, longest n-gram first; never rescans the row.

    Each n-gram is a node of a trie: the n-gram of one token less that ends one position earlier,
    and the token that extends it. A token costs one step in the trie for each n-gram size, in time
    and in memory, however long the row is.

    keep_all: every occurrence is kept, so that of the newest ones the first with a whole draft
    behind it is chosen; otherwise only the newest (or, with use_oldest, the oldest) is.
    use_oldest: draft what followed the oldest occurrence. It has most tokens behind it.

    Source: Saxena, "Prompt Lookup Decoding", 2023; the switches are those of TensorRT-LLM's
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
        self._row = array("i")
        self._nodes: dict[tuple[int, int], int] = {}  # (shorter n-gram's node, token) -> node
        self._follower = array("i", [NONE])  # node -> position of the token behind its occurrence
        self._tail = [0]  # n-gram size -> node of the row's last so many tokens
        self._max_ngram_size = max_ngram_size
        # n-gram size -> position -> the position behind the occurrence before
        self._earlier = [array("i") for _ in range(max_ngram_size + 1 if self._keep_all else 0)]

    def __len__(self) -> int:
        return len(self._row)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the row."""
        for token in tokens:
            self._note_follower()
            self._row.append(token)
            self._advance_tail(token)

    def lookup(self, limit: int) -> Match | None:
        """Return at most ``limit`` tokens that followed the row's tail before."""
        for size in range(len(self._tail) - 1, 0, -1):
            start = self._follower[self._tail[size]]
            if start != NONE:
                start = self._with_whole_draft(size, start, limit)
                return Match(self._row[start : start + limit].tolist(), size)
        return None

    def _note_follower(self) -> None:
        """The next token follows every n-gram that ends here."""
        position, follower = len(self._row), self._follower
        for size in range(1, len(self._tail)):
            node = self._tail[size]
            if self._keep_all:
                self._earlier[size].append(follower[node])
            if follower[node] == NONE or not self._use_oldest:
                follower[node] = position

    def _advance_tail(self, token: int) -> None:
        tail, nodes = [0], self._nodes
        for shorter in self._tail[: self._max_ngram_size]:
            node = nodes.setdefault((shorter, token), len(self._follower))
            if node == len(self._follower):
                self._follower.append(NONE)
            tail.append(node)
        self._tail = tail

    def _with_whole_draft(self, size: int, start: int, limit: int) -> int:
        """Go back to an occurrence with ``limit`` tokens behind it: at most ``limit`` steps."""
        while self._keep_all and len(self._row) - start < limit:
            earlier = self._earlier[size][start - size]
            if earlier == NONE:
                break
            start = earlier
        return start
