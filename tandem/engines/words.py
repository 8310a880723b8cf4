"""Lists of stop words or bad words, each a sequence of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Ids: TypeAlias = NDArray[np.int32]
_Places: TypeAlias = NDArray[np.intp]


class Words:
    """Words in the layout of NVIDIA's tensors, so that long lists need no Python loop.

    ids: INT32 [n], all words concatenated. ends: end offset of each word in `ids`, ascending. Words
    without ids are ignored.
    """

    def __init__(self, ids: _Ids, ends: NDArray[Any]) -> None:
        starts = np.concatenate((np.zeros(min(1, len(ends)), np.intp), ends[:-1]))
        real = ends > starts
        self._starts: _Places = starts[real]
        self._ends: _Places = ends[real].astype(np.intp)
        self.ids: _Ids = ids[: self._ends[-1] if len(self._ends) else 0]

    @classmethod
    def of(cls, *words: Sequence[int]) -> Words:
        ids = [token for word in words for token in word]
        return cls(np.array(ids, np.int32), np.cumsum([len(word) for word in words], dtype=np.intp))

    def __len__(self) -> int:
        return len(self._ends)

    @cached_property
    def singles(self) -> _Ids:
        """The ids of single-token words, ascending, without duplicates."""
        ids: _Ids = np.unique(self.ids[self._starts[self._lengths == 1]])
        return ids

    @cached_property
    def single_ids(self) -> frozenset[int]:
        """The ids of single-token words, as a set."""
        return frozenset(self.singles.tolist())

    @cached_property
    def longest(self) -> int:
        return int(self._lengths.max(initial=0))

    def next_after(self, text: NDArray[Any]) -> _Ids:
        """Return the ids that would complete a multi-token word after `text` [n]."""
        last: _Ids = self.ids[self._phrases[1][self._at_end(text, 1)] - 1]
        return last

    def first_end(self, before: Sequence[int], new: Sequence[int], skip: int = 0) -> int | None:
        """Return the index in `new` of the token that completes a word in `before + new`, or None.

        Words that end within the first `skip` tokens of `new` don't count.
        """
        last = len(new)
        if not self.single_ids.isdisjoint(new[skip:]):
            last = next(i for i in range(skip, last) if new[i] in self.single_ids)
        if self.longest > 1:
            tail = before[max(0, len(before) - self.longest + 1) :]
            text = np.array([*tail, *new], np.int64)
            for i in range(skip, last):
                if len(self._at_end(text[: len(tail) + i + 1], 0)):
                    return i
        return last if last < len(new) else None

    @cached_property
    def _lengths(self) -> _Places:
        return self._ends - self._starts

    @cached_property
    def _phrases(self) -> tuple[_Places, _Places]:
        several = self._lengths > 1
        return self._starts[several], self._ends[several]

    def _at_end(self, text: NDArray[Any], missing: int) -> _Places:
        """Return the indices of phrases that end `text` if their last `missing` ids are ignored.

        All phrases are compared at once, backwards, in steps that double. So the number of
        operations barely depends on the number or the length of the words.
        """
        starts, ends = self._phrases[0], self._phrases[1] - missing
        left = np.flatnonzero(ends - starts <= len(text))
        found: list[_Places] = []
        depth, width = 0, 1
        while len(left):
            back = depth + np.arange(1, width + 1)
            at = ends[left, np.newaxis] - back  # [words left, width]
            inside = at >= starts[left, np.newaxis]
            same = self.ids[np.maximum(at, 0)] == text[np.maximum(len(text) - back, 0)]
            left = left[(same | ~inside).all(1)]
            depth, width = depth + width, depth + width
            over = ends[left] - starts[left] <= depth
            found.append(left[over])
            left = left[~over]
        return np.concatenate(found) if found else left


NO_WORDS = Words.of()
