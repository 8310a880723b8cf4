"""Token masks as engines take them, and a grammar to make them of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

PADDING = 2**32 - 1


def masks(*rows: Iterable[int], vocab_size: int) -> np.ndarray:
    """Return masks [rows, words] of the ids that may come at each place.

    The bits behind the vocabulary, which mean nothing, are set.
    """
    words = np.zeros((len(rows), -(-vocab_size // 32)), np.uint32)
    words[:, -1] = PADDING << vocab_size % 32 & PADDING if vocab_size % 32 else 0
    for row, ids in zip(words, rows, strict=True):
        for token in ids:
            row[token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)


class Grammar:
    """What may follow a text, by its last token and its length: one of these numbers of tokens."""

    def __init__(self, vocab_size: int, sizes: Sequence[int] = (1, 3, 40, 125)) -> None:
        self._vocab_size = vocab_size
        self._sizes = sizes

    def legal(self, text: Sequence[int]) -> list[int]:
        random = np.random.default_rng([len(text), text[-1]])
        return random.choice(self._vocab_size, random.choice(self._sizes), replace=False).tolist()

    def illegal(self, text: Sequence[int]) -> int:
        """A token that must not follow."""
        return min(set(range(self._vocab_size)).difference(self.legal(text)))

    def masks(self, text: Sequence[int], drafts: Sequence[int] = ()) -> np.ndarray:
        """Return a row for each draft token and one behind them.

        Nothing may come behind an illegal one: a matcher that was left there says nothing.
        """
        rows: list[list[int]] = []
        possible = True
        for length in range(len(drafts) + 1):
            before = [*text, *drafts[:length]]
            rows.append(self.legal(before) if possible else [])
            possible = length < len(drafts) and drafts[length] in rows[-1]
        return masks(*rows, vocab_size=self._vocab_size)
