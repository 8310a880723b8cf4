"""Computes statistics from token ids: rounds of speculative decoding, and repetition."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(text: Sequence[int], guesses: Sequence[int], draft_len: int) -> list[int]:
    """Return the number of tokens that each round of greedy decoding emits, for the output `text`.

    `guesses[i]` is the draft's greedy token after the context before `text[i]`. One draft pass over
    the finished text yields all guesses, because every accepted token has the same context
    there as in decoding.

    >>> rounds([5, 6, 7, 8, 9], guesses=[5, 6, 0, 8, 9], draft_len=4)
    [3, 2]
    """
    emitted: list[int] = []
    position = 0
    while position < len(text):
        drafted = min(draft_len, len(text) - position - 1)
        accepted = 0
        while accepted < drafted and guesses[position + accepted] == text[position + accepted]:
            accepted += 1
        emitted.append(accepted + 1)
        position += accepted + 1
    return emitted


def repeated_share(text: Sequence[int], n: int = 8) -> float:
    """Return the share of n-grams that occurred earlier in `text`; near 1 if the text repeats."""
    grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
