"""Answers of earlier requests, in pools by name: what followed the same tokens in one of them."""

from __future__ import annotations

import hashlib
import secrets
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.lookup.index import Match

LEAST_MATCH: Final = 3  # tokens that lead to a copy from a pool: what is shorter is everywhere
LONGEST_MATCH: Final = 24  # that are compared
MOST_OCCURRENCES: Final = 16  # that a lookup compares, the newest first
# Tokens that an answer counts for, however short: so much its objects and a pool's take.
LEAST_COUNTED: Final = 64
OFFSET_BITS: Final = 24  # of a position
MOST_TOKENS: Final = 2**OFFSET_BITS  # in all pools

FACTOR: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: its high bits mix best (Knuth)
WORD: Final = 2**64 - 1


class PooledAnswer(NamedTuple):
    """One answer, which never changes.

    pool: the key of the pool that it belongs to. earlier: for each position behind `LEAST_MATCH`
    tokens or more, the position before it whose tokens have the same slot; 0: there was none.
    """

    pool: bytes
    tokens: array[int]  # [n]
    earlier: array[int]  # [n - LEAST_MATCH]

    @property
    def counted(self) -> int:
        """Tokens that it counts for."""
        return _counted(len(self.tokens))


class LookupPools:
    """Finds in a pool's answers what followed a text's last tokens. Thread-safe.

    An answer is found in its own pool alone, and only what is in one answer is ever copied. All
    pools together hold ``max_tokens``; the oldest answers of the least recently used pool make
    room. About 45 bytes a token is the most that they take, whatever is put into them: names are
    kept as digests, and an answer counts for `LEAST_COUNTED` tokens at least.

    The structure is that of LZ77 in zlib: a table says for each `LEAST_MATCH` tokens where they
    were last, and each position where they were before. A lookup goes back through
    `MOST_OCCURRENCES` of them and keeps the one that the longest match leads to. An answer that has
    gone ends such a chain, so removing one costs nothing but its own memory.

    Sources: Deutsch, RFC 1951, section 4; that finished answers are worth looking up, and the
    longest suffix first: Oliaro et al., "SuffixDecoding", arXiv:2411.04975.

    >>> pools = LookupPools(max_tokens=1000)
    >>> pools.join("ours", [1, 2, 3, 4, 5, 6])
    >>> pools.lookup("ours", [9, 2, 3, 4], limit=2)
    Match(tokens=[5, 6], ngram_size=3)
    >>> pools.lookup("theirs", [9, 2, 3, 4], limit=2)
    """

    def __init__(self, max_tokens: int) -> None:
        if not 1 <= max_tokens <= MOST_TOKENS:
            raise ValueError(f"{max_tokens} tokens of pools, must lie in 1..{MOST_TOKENS}")
        self.max_tokens = max_tokens
        bits = max(1, (max_tokens - 1).bit_length())
        self._shift = 64 - bits
        self._newest = np.zeros(2**bits, np.int64)  # slot -> position, 0: none
        self._answers: dict[int, PooledAnswer] = {}  # number, from 1 -> answer
        self._pools: OrderedDict[bytes, deque[int]] = OrderedDict()  # the last used is the last
        self._num_answers = 0  # that ever joined
        self._num_tokens = 0
        self._secret = secrets.token_bytes(16)  # nobody can choose what shares a slot
        self._lock = threading.Lock()

    @property
    def num_tokens(self) -> int:
        """Tokens that the answers count for."""
        return self._num_tokens

    def join(self, name: str, answer: Sequence[int] | NDArray[np.int32]) -> None:
        """Add an answer to the pool of that name; one that is too long for all pools is left out.

        name: valid UTF-8. What takes long, for a long answer, is done by NumPy before the lock.
        """
        row = np.array(answer, np.int32)
        counted = _counted(len(row))
        if len(row) <= LEAST_MATCH or counted > self.max_tokens:
            return
        key = self._key(name)
        slots = self._slots(key, row)
        again, before = _repeated(slots)
        tokens = array("i", row.tobytes())
        with self._lock:
            if key in self._pools:
                self._pools.move_to_end(key)
            while self._num_tokens + counted > self.max_tokens:
                self._drop_one()
            self._num_answers += 1
            first = (self._num_answers << OFFSET_BITS) + LEAST_MATCH
            positions = np.arange(first, first + len(slots))
            earlier = self._newest[slots]
            earlier[again] = positions[before]
            self._newest[slots] = positions  # of those with the same slot the last one stays
            found = PooledAnswer(key, tokens, array("q", earlier.tobytes()))
            self._answers[self._num_answers] = found
            self._pools.setdefault(key, deque()).append(self._num_answers)
            self._num_tokens += counted

    def lookup(self, name: str, tail: Sequence[int], limit: int) -> Match | None:
        """Return at most ``limit`` tokens that followed a text's last ones in the pool's answers.

        tail: those last tokens; of more than `LONGEST_MATCH` the last ones count.
        """
        if len(tail) < LEAST_MATCH:
            return None
        best, longest = None, LEAST_MATCH - 1
        key = self._key(name)
        with self._lock:
            if key not in self._pools:
                return None
            self._pools.move_to_end(key)
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

    def _drop_one(self) -> None:
        """Remove the oldest answer of the pool that was not used for longest."""
        key, numbers = next(iter(self._pools.items()))
        self._num_tokens -= self._answers.pop(numbers.popleft()).counted
        if not numbers:
            del self._pools[key]

    def _key(self, name: str) -> bytes:
        return hashlib.blake2b(name.encode(), digest_size=16, key=self._secret).digest()

    def _slot(self, key: bytes, tail: Sequence[int]) -> int:
        """Return where the table says of a tail's last tokens where they were."""
        mixed = int.from_bytes(key[:8], "little")
        for token in tail[-LEAST_MATCH:]:
            mixed = (mixed ^ token) * FACTOR & WORD
        return mixed >> self._shift

    def _slots(self, key: bytes, row: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the slots of the tokens before each position that a token follows.

        row: [n]; slots: [n - LEAST_MATCH].
        """
        count = len(row) - LEAST_MATCH
        mixed = np.full(count, int.from_bytes(key[:8], "little"), np.uint64)
        for at in range(LEAST_MATCH):
            mixed = (mixed ^ row[at : at + count].astype(np.uint64)) * np.uint64(FACTOR)
        return (mixed >> np.uint64(self._shift)).astype(np.int64)


def _counted(length: int) -> int:
    return max(length, LEAST_COUNTED)


def _repeated(slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which slots came before in the row, and where they last did."""
    order = np.argsort(slots, kind="stable")
    same = slots[order[1:]] == slots[order[:-1]]
    return order[1:][same], order[:-1][same]


def _matching(tokens: array[int], end: int, tail: Sequence[int]) -> int:
    """How many tokens before a position are the tail's last ones."""
    size, most = 0, min(end, len(tail), LONGEST_MATCH)
    while size < most and tokens[end - size - 1] == tail[-size - 1]:
        size += 1
    return size
