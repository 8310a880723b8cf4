"""Simulated statistics: rounds of speculative decoding and repetition, computed from token ids."""

from __future__ import annotations

from collections.abc import Sequence


def rounds(text: Sequence[int], guesses: Sequence[int], draft_len: int) -> list[int]:
    """Tokens emitted by each round of greedy speculative decoding that ends in `text`.

    `guesses[i]` is the draft's greedy token after the true context before `text[i]`. One draft pass
    over the finished text gives all of them, because the context of accepted drafts is that text.

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
    """Return the share of n-grams that occurred earlier in `text`: near 1, the text is a loop."""
    grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
