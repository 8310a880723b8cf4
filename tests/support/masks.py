"""Token masks in the format of the engines, and a grammar that produces them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

PADDING = 2**32 - 1


def masks(*rows: Iterable[int], vocab_size: int) -> np.ndarray:
    """Return masks [rows, words] of 32-bit words. rows: the allowed ids at each position.

    Unused bits after the vocabulary are set.
    """
    words = np.zeros((len(rows), -(-vocab_size // 32)), np.uint32)
    words[:, -1] = PADDING << vocab_size % 32 & PADDING if vocab_size % 32 else 0
    for row, ids in zip(words, rows, strict=True):
        for token in ids:
            row[token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)


class Grammar:
    """A grammar in which the last token and the length of the text decide the allowed tokens."""

    def __init__(self, vocab_size: int, sizes: Sequence[int] = (1, 3, 40, 125)) -> None:
        self._vocab_size = vocab_size
        self._sizes = sizes

    def legal(self, text: Sequence[int]) -> list[int]:
        random = np.random.default_rng([len(text), text[-1]])
        return random.choice(self._vocab_size, random.choice(self._sizes), replace=False).tolist()

    def illegal(self, text: Sequence[int]) -> int:
        """Return a token that isn't allowed after a text."""
        return min(set(range(self._vocab_size)).difference(self.legal(text)))

    def masks(self, text: Sequence[int], drafts: Sequence[int] = ()) -> np.ndarray:
        """Return one row per draft token, plus one row for the token after the draft.

        No token is allowed after an illegal draft token, because a matcher stops there.
        """
        rows: list[list[int]] = []
        possible = True
        for length in range(len(drafts) + 1):
            before = [*text, *drafts[:length]]
            rows.append(self.legal(before) if possible else [])
            possible = length < len(drafts) and drafts[length] in rows[-1]
        return masks(*rows, vocab_size=self._vocab_size)
