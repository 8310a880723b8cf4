"""Named pools of earlier answers, in which a request looks up its last tokens.

A server fills pools from files when it starts.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.lookup.ngrams import MAX_MATCH, MIN_MATCH, Match

MAX_OCCURRENCES: Final = 16  # maximum number of occurrences to compare, newest first
# An answer counts as at least this many tokens, because its objects also take memory.
MIN_ANSWER_TOKENS: Final = 64
# Maximum number of tokens in answers that are requeued per new answer, which takes about 1 ms.
MAX_REQUEUED_TOKENS: Final = 8192
REQUEUE_COST: Final = 512  # fixed cost of requeuing an answer, in tokens
OFFSET_BITS: Final = 24  # a position is (answer number << OFFSET_BITS) + offset in the answer
MAX_TOKENS: Final = 2**OFFSET_BITS  # maximum number of tokens in all pools

FACTOR: Final = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: its high bits mix best (Knuth)
WORD: Final = 2**64 - 1
POOLS = "pools"  # folder of the files in a rendered repository
LINES = ".jsonl"


class PooledAnswer(NamedTuple):
    """One answer in a pool. It never changes.

    pool: key of its pool. added: number of uses of all pools when the answer was added. earlier:
    for each position after at least `MIN_MATCH` tokens, the previous position with the same slot;
    0: none.
    """

    pool: bytes
    added: int
    tokens: array[int]  # [n]
    earlier: array[int]  # [n - MIN_MATCH]


class Links(NamedTuple):
    """The slots of an answer's positions, [n - MIN_MATCH].

    again: indices of slots that occurred earlier in this answer. before: for each of them, the
    index of the previous occurrence.
    """

    slots: NDArray[np.int64]
    again: NDArray[np.int64]
    before: NDArray[np.int64]


class PoolSize(NamedTuple):
    """The size of a pool. id: stands for its name, which can't be derived from it."""

    id: str
    outputs: int
    tokens: int


class PoolUse:
    """Usage of one pool. last: time of its last use, counted in uses of any pool."""

    __slots__ = ("last", "num_answers")

    def __init__(self) -> None:
        self.num_answers = 0
        self.last = 0


class LookupPools:
    """Finds the tokens that followed a text's last tokens in a pool's answers. Thread-safe.

    An answer is found only in its own pool, and a match comes from a single answer. All pools
    together hold at most ``max_tokens``. Memory use is at most about 45 bytes per token, because
    names are stored as digests and an answer counts for at least `MIN_ANSWER_TOKENS` tokens.

    To make room for a new answer, the oldest answers are evicted first. An old answer gets a second
    chance, as in CLOCK, which approximates LRU: if its pool has been used since the answer was
    added, and the new answer belongs to another pool, the old answer moves to the end of the queue
    instead.

    The data structure is LZ77 as in zlib. A hash table maps the last `MIN_MATCH` tokens to the
    newest position after them, and each position links to the previous one with the same slot. A
    lookup follows up to `MAX_OCCURRENCES` links and returns the longest match. Answers are evicted
    in the order in which they were added. So a link to an evicted answer ends the chain, and
    eviction doesn't have to update links. (After `clear`, a chain may also end early at a slot that
    several pools share.)

    Sources: Deutsch, RFC 1951, section 4, for the structure; Oliaro et al., "SuffixDecoding",
    arXiv:2411.04975, for looking up finished answers by their longest suffix.

    >>> pools = LookupPools(max_tokens=1000)
    >>> pools.add("ours", [1, 2, 3, 4, 5, 6])
    >>> pools.lookup("ours", [9, 2, 3, 4], limit=2)
    Match(tokens=[5, 6], ngram_size=3)
    >>> pools.lookup("theirs", [9, 2, 3, 4], limit=2)
    """

    def __init__(self, max_tokens: int) -> None:
        if not 1 <= max_tokens <= MAX_TOKENS:
            raise ValueError(f"max_tokens must be between 1 and {MAX_TOKENS}; got {max_tokens}")
        self.max_tokens = max_tokens
        bits = max(1, (max_tokens - 1).bit_length())
        self._shift = 64 - bits
        self._newest = np.zeros(2**bits, np.int64)  # slot -> newest position; 0: none
        self._answers: OrderedDict[int, PooledAnswer] = OrderedDict()  # by number, oldest first
        self._pools: dict[bytes, PoolUse] = {}  # only pools that have answers
        self._last_number = 0
        self._num_uses = 0
        self.num_tokens = 0  # total size of the answers; short ones count as MIN_ANSWER_TOKENS
        self._secret = secrets.token_bytes(16)  # clients can't choose which tokens share a slot
        self._lock = threading.Lock()

    def add(self, name: str, answer: Sequence[int] | NDArray[np.int32]) -> None:
        """Add an answer to the pool with this name. Answers of unsuitable length are ignored.

        name: valid UTF-8. answer: token ids, [n]; ignored if n is at most `MIN_MATCH` or too
        large for ``max_tokens``. The slow part runs in NumPy before the lock is taken.
        """
        row = np.asarray(answer, np.int32)
        counted = _charged_tokens(len(row))
        if len(row) <= MIN_MATCH or counted > self.max_tokens:
            return
        key = self._key(name)
        tokens, links = array("i", row.tobytes()), self._links(key, row)
        with self._lock:
            self._make_room(key, counted)
            pool = self._pools.setdefault(key, PoolUse())
            pool.num_answers += 1
            self.num_tokens += counted
            self._mark_used(pool)
            self._append(key, tokens, links)

    def lookup(self, name: str, tail: Sequence[int], limit: int) -> Match | None:
        """Return at most ``limit`` tokens that followed the longest match in the pool's answers.

        tail: last tokens of a text; at most `MAX_MATCH` of them are compared.
        """
        if len(tail) < MIN_MATCH:
            return None
        best, longest = None, MIN_MATCH - 1
        key = self._key(name)
        with self._lock:
            pool = self._pools.get(key)
            if pool is None:
                return None
            self._mark_used(pool)
            for answer, end in self._occurrences(key, tail):
                size = _match_length(answer.tokens, end, tail)
                if size > longest:
                    best, longest = answer.tokens[end : end + limit], size
        return None if best is None else Match(best.tolist(), longest)

    def sizes(self) -> list[PoolSize]:
        """Return the sizes of all pools, largest first."""
        with self._lock:
            answers = list(self._answers.values())
        return _sizes(answers)

    def clear(self, pool_id: str | None = None) -> list[PoolSize]:
        """Remove all answers, or the answers of the pool with this id. Return what was removed."""
        with self._lock:
            removed = {
                number: answer
                for number, answer in self._answers.items()
                if pool_id in {None, _id(answer.pool)}
            }
            for number, answer in removed.items():
                del self._answers[number]
                self.num_tokens -= _charged_tokens(len(answer.tokens))
                self._pools.pop(answer.pool, None)
        return _sizes(removed.values())

    def _occurrences(self, key: bytes, tail: Sequence[int]) -> Iterator[tuple[PooledAnswer, int]]:
        """Yield answers of a pool and the positions at which the tail's last tokens may end."""
        position = int(self._newest[self._slot(key, tail)])
        for _ in range(MAX_OCCURRENCES):
            answer = self._answers.get(position >> OFFSET_BITS)
            if answer is None:
                return
            end = position & (MAX_TOKENS - 1)
            if answer.pool == key:
                yield answer, end
            position = answer.earlier[end - MIN_MATCH]

    def _mark_used(self, pool: PoolUse) -> None:
        self._num_uses += 1
        pool.last = self._num_uses

    def _make_room(self, key: bytes, counted: int) -> None:
        """Evict or requeue the oldest answers until there is room for ``counted`` tokens.

        key: key of the pool that the new answer belongs to.
        """
        left = MAX_REQUEUED_TOKENS
        while self.num_tokens + counted > self.max_tokens:
            _, answer = self._answers.popitem(last=False)
            pool = self._pools[answer.pool]
            cost = REQUEUE_COST + len(answer.tokens)
            if pool.last > answer.added and answer.pool != key and cost <= left:
                left -= cost
                row = np.frombuffer(answer.tokens, np.int32)
                self._append(answer.pool, answer.tokens, self._links(answer.pool, row))
                continue
            self.num_tokens -= _charged_tokens(len(answer.tokens))
            pool.num_answers -= 1
            if not pool.num_answers:
                del self._pools[answer.pool]

    def _append(self, key: bytes, tokens: array[int], links: Links) -> None:
        """Append an answer to the queue, and link its positions to the previous ones."""
        self._last_number += 1
        first = (self._last_number << OFFSET_BITS) + MIN_MATCH
        positions = np.arange(first, first + len(links.slots))
        earlier = self._newest[links.slots]
        earlier[links.again] = positions[links.before]
        self._newest[links.slots] = positions  # the last one wins if several have the same slot
        self._answers[self._last_number] = PooledAnswer(
            key, self._num_uses, tokens, array("q", earlier.tobytes())
        )

    def _key(self, name: str) -> bytes:
        return hashlib.blake2b(name.encode(), digest_size=16, key=self._secret).digest()

    def _slot(self, key: bytes, tail: Sequence[int]) -> int:
        """Return the hash table's index for the last `MIN_MATCH` tokens of ``tail``."""
        mixed = int.from_bytes(key[:8], "little")
        for token in tail[-MIN_MATCH:]:
            mixed = (mixed ^ token) * FACTOR & WORD
        return mixed >> self._shift

    def _links(self, key: bytes, row: NDArray[np.int32]) -> Links:
        """Return the links of an answer. row: its token ids, [n]."""
        count = len(row) - MIN_MATCH
        mixed = np.full(count, int.from_bytes(key[:8], "little"), np.uint64)
        for at in range(MIN_MATCH):
            mixed = (mixed ^ row[at : at + count].astype(np.uint64)) * np.uint64(FACTOR)
        slots = (mixed >> np.uint64(self._shift)).astype(np.int64)
        order = np.argsort(slots, kind="stable")
        same = slots[order[1:]] == slots[order[:-1]]
        return Links(slots, order[1:][same], order[:-1][same])


def _id(key: bytes) -> str:
    return key[8:].hex()  # without the bytes that determine slots


def _sizes(answers: Iterable[PooledAnswer]) -> list[PoolSize]:
    tokens: dict[bytes, list[int]] = {}  # lengths of a pool's answers
    for answer in answers:
        tokens.setdefault(answer.pool, []).append(len(answer.tokens))
    found = [PoolSize(_id(key), len(lengths), sum(lengths)) for key, lengths in tokens.items()]
    return sorted(found, key=lambda pool: -pool.tokens)


def _charged_tokens(length: int) -> int:
    return max(length, MIN_ANSWER_TOKENS)


def _match_length(tokens: array[int], end: int, tail: Sequence[int]) -> int:
    """Count how many tokens before ``end`` equal the last tokens of ``tail``."""
    size, limit = 0, min(end, len(tail), MAX_MATCH)
    while size < limit and tokens[end - size - 1] == tail[-size - 1]:
        size += 1
    return size


class DocumentError(ValueError):
    """A file isn't a document. The message is one line that names it."""


def find_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of all pools, by subfolder; "": files with a document per line."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            files[path.name] = sorted(path.iterdir())
        elif path.suffix == LINES:
            files.setdefault("", []).append(path)
        else:
            raise DocumentError(f"{path} must be a folder of documents, or a {LINES} file")
    return files


def read_documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the pool and the text of each document. Raises DocumentError."""
    for pool, paths in find_files(folder).items():
        for path in paths:
            try:
                text = path.read_text(encoding="utf-8")
                if pool:
                    yield pool, text
                    continue
                for line in filter(None, text.split("\n")):
                    yield path.stem, json.loads(line)["text"].encode().decode()
            except OSError as error:
                raise DocumentError(f"can't read {path}: {error.strerror}") from error
            except UnicodeDecodeError as error:
                raise DocumentError(f"{path} must be UTF-8") from error
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise DocumentError(
                    f'each line of {path} must be an object with a text, {{"text": "..."}}'
                ) from error


def fill(pools: LookupPools, folder: Path, encode: Callable[[str], Sequence[int]]) -> None:
    """Add all documents to their pools."""
    for pool, text in read_documents(folder):
        pools.add(pool, encode(text))
