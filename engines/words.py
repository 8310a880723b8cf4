"""Lists of stop words or bad words, each a sequence of token ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Ids: TypeAlias = NDArray[np.int32]
_Word: TypeAlias = tuple[int, ...]


class Words:
    """Words without order. Words without ids are ignored."""

    def __init__(self, *words: Sequence[int]) -> None:
        self._words: list[_Word] = [tuple(word) for word in words if word]

    def __len__(self) -> int:
        return len(self._words)

    def __iter__(self) -> Iterator[_Word]:
        return iter(self._words)

    @property
    def ids(self) -> _Ids:
        """The ids of all words, concatenated."""
        return np.array([token for word in self._words for token in word], np.int32)

    @cached_property
    def singles(self) -> _Ids:
        """The ids of single-token words, ascending, without duplicates."""
        return np.array(sorted(self.single_ids), np.int32)

    @cached_property
    def single_ids(self) -> frozenset[int]:
        """The ids of single-token words, as a set."""
        return frozenset(word[0] for word in self._words if len(word) == 1)

    @cached_property
    def longest(self) -> int:
        return max(map(len, self._words), default=0)

    def next_after(self, text: NDArray[Any]) -> _Ids:
        """Return the ids that would complete a multi-token word after `text` [n]."""
        found: list[int] = []
        for length, lasts in self._lasts.items():
            if length <= len(text):
                found += lasts.get(tuple(text[-length:].tolist()), ())
        return np.array(found, np.int32)

    def first_end(self, before: Sequence[int], new: Sequence[int], skip: int = 0) -> int | None:
        """Return the index in `new` of the token that completes a word in `before + new`, or None.

        Words that end within the first `skip` tokens of `new` don't count.
        """
        tail = before[max(0, len(before) - self.longest + 1) :]
        text = [*tail, *new]
        for i in range(skip, len(new)):
            end = len(tail) + i + 1
            for length, words in self._by_length.items():
                if length <= end and tuple(text[end - length : end]) in words:
                    return i
        return None

    @cached_property
    def _by_length(self) -> Mapping[int, set[_Word]]:
        words: dict[int, set[_Word]] = defaultdict(set)
        for word in self._words:
            words[len(word)].add(word)
        return words

    @cached_property
    def _lasts(self) -> Mapping[int, Mapping[_Word, list[int]]]:
        """The last tokens of multi-token words, by the other tokens, by the number of these."""
        lasts: dict[int, dict[_Word, list[int]]] = defaultdict(dict)
        for *others, last in self._words:
            if others:
                lasts[len(others)].setdefault(tuple(others), []).append(last)
        return lasts


NO_WORDS = Words()
