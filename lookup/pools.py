"""Answers of earlier requests, in pools by name: what followed the same tokens in one of them."""

from __future__ import annotations

import hashlib
import secrets
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.lookup.index import Match

LEAST_MATCH: Final = 3  # tokens that lead to a copy from a pool: shorter matches are everywhere
LONGEST_MATCH: Final = 24  # that are compared
MOST_OCCURRENCES: Final = 16  # that a lookup compares, the newest first
# Least number of tokens that an answer counts for: its objects and a pool's take as much memory.
LEAST_COUNTED: Final = 64
# Tokens of answers that may be requeued when one answer joins: this takes about 1 ms.
MOST_MOVED: Final = 8192
MOVE: Final = 512  # what one answer costs in addition to its tokens
OFFSET_BITS: Final = 24  # of a position, which is an answer's number and an offset in it
MOST_TOKENS: Final = 2**OFFSET_BITS  # in all pools

FACTOR: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: its high bits mix best (Knuth)
WORD: Final = 2**64 - 1


class PooledAnswer(NamedTuple):
    """One answer, which never changes.

    pool: the key of its pool. joined: number of uses of pools before it. earlier: for each position
    after at least `LEAST_MATCH` tokens, the last position before it whose tokens have the same
    slot; 0: none.
    """

    pool: bytes
    joined: int
    tokens: array[int]  # [n]
    earlier: array[int]  # [n - LEAST_MATCH]


class Links(NamedTuple):
    """The slots of an answer's positions, [n - LEAST_MATCH].

    again: which of them occurred before in this answer. before: their last positions there.
    """

    slots: NDArray[np.int64]
    again: NDArray[np.int64]
    before: NDArray[np.int64]


class PoolUse:
    """How many answers a pool has, and when it was last used, in uses of all pools."""

    __slots__ = ("last", "num_answers")

    def __init__(self) -> None:
        self.num_answers = 0
        self.last = 0


class LookupPools:
    """Finds in a pool's answers what followed a text's last tokens. Thread-safe.

    An answer is found only in its own pool, and a copy comes from a single answer. All pools
    together hold ``max_tokens``. The oldest answers make room. An answer whose pool was used since
    moves to the end of the queue instead, unless the new answer belongs to the same pool. This is
    the second chance of CLOCK, which approximates least recently used. All pools together take at
    most about 45 bytes per token: names are kept as digests, and an answer counts for at least
    `LEAST_COUNTED` tokens.

    The structure is LZ77 as in zlib. A table has the last position of each `LEAST_MATCH` tokens,
    and each position has the position where they were before. A lookup goes back through
    `MOST_OCCURRENCES` of them and keeps the one with the longest match. Answers leave in the order
    in which they came, so a removed answer ends such a chain, and costs nothing to remove.

    Sources: Deutsch, RFC 1951, section 4, for the structure; Oliaro et al., "SuffixDecoding",
    arXiv:2411.04975, for looking up finished answers by their longest suffix.

    >>> pools = LookupPools(max_tokens=1000)
    >>> pools.join("ours", [1, 2, 3, 4, 5, 6])
    >>> pools.lookup("ours", [9, 2, 3, 4], limit=2)
    Match(tokens=[5, 6], ngram_size=3)
    >>> pools.lookup("theirs", [9, 2, 3, 4], limit=2)
    """

    def __init__(self, max_tokens: int) -> None:
        if not 1 <= max_tokens <= MOST_TOKENS:
            raise ValueError(f"max_tokens must be between 1 and {MOST_TOKENS}; got {max_tokens}")
        self.max_tokens = max_tokens
        bits = max(1, (max_tokens - 1).bit_length())
        self._shift = 64 - bits
        self._newest = np.zeros(2**bits, np.int64)  # slot -> position, 0: none
        self._answers: OrderedDict[int, PooledAnswer] = OrderedDict()  # by number, oldest first
        self._pools: dict[bytes, PoolUse] = {}  # only pools that have answers
        self._last_number = 0
        self._num_uses = 0
        self.num_tokens = 0  # that the answers count for
        self._secret = secrets.token_bytes(16)  # clients can't choose which tokens share a slot
        self._lock = threading.Lock()

    def join(self, name: str, answer: Sequence[int] | NDArray[np.int32]) -> None:
        """Add an answer to the pool of that name, unless it is too long for all pools.

        name: valid UTF-8. NumPy does the slow part, for long answers, before the lock is taken.
        """
        row = np.asarray(answer, np.int32)
        counted = _counted(len(row))
        if len(row) <= LEAST_MATCH or counted > self.max_tokens:
            return
        key = self._key(name)
        tokens, links = array("i", row.tobytes()), self._links(key, row)
        with self._lock:
            self._make_room(key, counted)
            pool = self._pools.setdefault(key, PoolUse())
            pool.num_answers += 1
            self.num_tokens += counted
            self._use(pool)
            self._append(key, tokens, links)

    def lookup(self, name: str, tail: Sequence[int], limit: int) -> Match | None:
        """Return at most ``limit`` tokens that followed a text's last ones in the pool's answers.

        tail: the text's last tokens; at most `LONGEST_MATCH` of them count.
        """
        if len(tail) < LEAST_MATCH:
            return None
        best, longest = None, LEAST_MATCH - 1
        key = self._key(name)
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                return None
            self._use(pool)
            for answer, end in self._occurrences(key, tail):
                size = _matching(answer.tokens, end, tail)
                if size > longest:
                    best, longest = answer.tokens[end : end + limit], size
        return None if best is None else Match(best.tolist(), longest)

    def _occurrences(self, key: bytes, tail: Sequence[int]) -> Iterator[tuple[PooledAnswer, int]]:
        """Yield answers of a pool and where in them the tail's last tokens may end."""
        position = int(self._newest[self._slot(key, tail)])
        for _ in range(MOST_OCCURRENCES):
            answer = self._answers.get(position >> OFFSET_BITS)
            if answer is None:
                return
            end = position & (MOST_TOKENS - 1)
            if answer.pool == key:
                yield answer, end
            position = answer.earlier[end - LEAST_MATCH]

    def _use(self, pool: PoolUse) -> None:
        self._num_uses += 1
        pool.last = self._num_uses

    def _make_room(self, key: bytes, counted: int) -> None:
        """Remove the oldest answers, or requeue them, until there is room for another.

        key: of the pool that needs the room.
        """
        left = MOST_MOVED
        while self.num_tokens + counted > self.max_tokens:
            _, answer = self._answers.popitem(last=False)
            pool = self._pools[answer.pool]
            cost = MOVE + len(answer.tokens)
            if pool.last > answer.joined and answer.pool != key and cost <= left:
                left -= cost
                row = np.frombuffer(answer.tokens, np.int32)
                self._append(answer.pool, answer.tokens, self._links(answer.pool, row))
                continue
            self.num_tokens -= _counted(len(answer.tokens))
            pool.num_answers -= 1
            if not pool.num_answers:
                del self._pools[answer.pool]

    def _append(self, key: bytes, tokens: array[int], links: Links) -> None:
        """Add an answer to the end of the queue, and its positions to the chains of their slots."""
        self._last_number += 1
        first = (self._last_number << OFFSET_BITS) + LEAST_MATCH
        positions = np.arange(first, first + len(links.slots))
        earlier = self._newest[links.slots]
        earlier[links.again] = positions[links.before]
        self._newest[links.slots] = positions  # of several with the same slot, the last one stays
        self._answers[self._last_number] = PooledAnswer(
            key, self._num_uses, tokens, array("q", earlier.tobytes())
        )

    def _key(self, name: str) -> bytes:
        return hashlib.blake2b(name.encode(), digest_size=16, key=self._secret).digest()

    def _slot(self, key: bytes, tail: Sequence[int]) -> int:
        """Return the index in the table for a tail's last tokens."""
        mixed = int.from_bytes(key[:8], "little")
        for token in tail[-LEAST_MATCH:]:
            mixed = (mixed ^ token) * FACTOR & WORD
        return mixed >> self._shift

    def _links(self, key: bytes, row: NDArray[np.int32]) -> Links:
        """Return the slots of the tokens before each position that a token follows. row: [n]."""
        count = len(row) - LEAST_MATCH
        mixed = np.full(count, int.from_bytes(key[:8], "little"), np.uint64)
        for at in range(LEAST_MATCH):
            mixed = (mixed ^ row[at : at + count].astype(np.uint64)) * np.uint64(FACTOR)
        slots = (mixed >> np.uint64(self._shift)).astype(np.int64)
        order = np.argsort(slots, kind="stable")
        same = slots[order[1:]] == slots[order[:-1]]
        return Links(slots, order[1:][same], order[:-1][same])


def _counted(length: int) -> int:
    return max(length, LEAST_COUNTED)


def _matching(tokens: array[int], end: int, tail: Sequence[int]) -> int:
    """Count the tokens before a position that equal the tail's last ones."""
    size, most = 0, min(end, len(tail), LONGEST_MATCH)
    while size < most and tokens[end - size - 1] == tail[-size - 1]:
        size += 1
    return size
