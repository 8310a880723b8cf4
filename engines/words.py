"""Lists of words, each a sequence of token ids: what ends an answer, or must not be said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Ids: TypeAlias = NDArray[np.int32]
_Places: TypeAlias = NDArray[np.intp]


class Words:
    """Words as NVIDIA's tensors lay them out, so that long lists cost no Python a word.

    ids: INT32 [n], all words one after another; ends: where each word ends in it, not falling. A
    word without ids is none.
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

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for start, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True):
            yield tuple(self.ids[start:end].tolist())

    @cached_property
    def singles(self) -> _Ids:
        """The words of one token: their ids, rising, each once."""
        ids: _Ids = np.unique(self.ids[self._starts[self._lengths == 1]])
        return ids

    @cached_property
    def single_ids(self) -> frozenset[int]:
        """The words of one token, to look a token up in."""
        return frozenset(self.singles.tolist())

    @cached_property
    def longest(self) -> int:
        return int(self._lengths.max(initial=0))

    def next_after(self, text: NDArray[Any]) -> _Ids:
        """Return the last tokens of those longer words whose other tokens `text` [n] ends with."""
        last: _Ids = self.ids[self._phrases[1][self._told(text, 1)] - 1]
        return last

    def first_end(self, before: Sequence[int], new: Sequence[int], skip: int = 0) -> int | None:
        """Return the index in `new` of the token that completes a word in `before + new`.

        The first one that is not among the first `skip` tokens of `new`; None where there is none.
        """
        last = len(new)
        if not self.single_ids.isdisjoint(new[skip:]):
            last = next(i for i in range(skip, last) if new[i] in self.single_ids)
        if self.longest > 1:
            tail = before[max(0, len(before) - self.longest + 1) :]
            text = np.array([*tail, *new], np.int64)
            for i in range(skip, last):
                if len(self._told(text[: len(tail) + i + 1], 0)):
                    return i
        return last if last < len(new) else None

    @cached_property
    def _lengths(self) -> _Places:
        return self._ends - self._starts

    @cached_property
    def _phrases(self) -> tuple[_Places, _Places]:
        several = self._lengths > 1
        return self._starts[several], self._ends[several]

    def _told(self, text: NDArray[Any], missing: int) -> _Places:
        """Which phrases the text ends with, but for their last `missing` tokens: their indices.

        All are compared at once, backwards, in steps that double: a few operations whatever the
        number of words and of their tokens.
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
