"""Lookup of a text's last tokens in its own earlier tokens, or in its predicted output."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_MATCH: Final = 3  # minimum number of matching tokens; shorter matches are too common
MAX_MATCH: Final = 24  # maximum number of tokens to compare


class Match(NamedTuple):
    """The tokens that followed an earlier occurrence of a text's last ``ngram_size`` tokens."""

    tokens: list[int]
    ngram_size: int


def look_up(text: NDArray[np.int32], limit: int, *, max_ngram_size: int) -> Match | None:
    """Return at most ``limit`` tokens that followed the longest n-gram that repeats at the end.

    This uses the n-gram's newest occurrence that ``limit`` tokens follow, or the oldest one if
    there is none. The match counts up to ``MAX_MATCH`` matching tokens, even beyond the n-gram.

    Source: Saxena, "Prompt Lookup Decoding", 2023.

    >>> look_up(np.array([1, 2, 3, 4, 1, 2]), limit=3, max_ngram_size=2)
    Match(tokens=[3, 4, 1], ngram_size=2)
    """
    places, size = find_occurrences(text[:-1], text, max_ngram_size)
    if not size:
        return None
    with_whole_draft = places[len(text) - places >= limit]
    start = int(with_whole_draft[-1] if len(with_whole_draft) else places[0])
    while size < min(MAX_MATCH, start) and text[start - size - 1] == text[-size - 1]:
        size += 1
    return Match(text[start : start + limit].tolist(), size)


def copy_like_match(text: NDArray[np.int32], limit: int) -> list[int]:
    """Return what followed the longest n-gram that repeats at the end, as many tokens as it has.

    So a match by chance costs little, and a copied passage continues in longer and longer drafts. A
    single matching token is too common. limit: maximum number of tokens, at least 0.

    >>> copy_like_match(np.array([1, 2, 3, 4, 1, 2]), limit=16)
    [3, 4]
    """
    match = look_up(text, limit, max_ngram_size=MAX_MATCH)
    return match.tokens[: match.ngram_size] if match and match.ngram_size > 1 else []


def find_occurrences(
    text: NDArray[np.int32], tail: NDArray[np.int32], max_size: int
) -> tuple[NDArray[np.intp], int]:
    """Find the longest n-gram of up to ``max_size`` tokens that ends ``tail`` and is in ``text``.

    Returns the positions after its occurrences, ascending, and its size; 0 if there is none. This
    compares the whole text with one token at a time. It needs no index, which would take longer to
    build than a thousand searches.
    """
    places, size = np.arange(0), 0
    for token in tail[: -max_size - 1 : -1].tolist():
        if size:
            longer = places[places > size]
            longer = longer[text[longer - size - 1] == token]
        else:
            longer = np.flatnonzero(text == token) + 1
        if not len(longer):
            break
        places, size = longer, size + 1
    return places, size


class Prediction:
    """Follows an output through its prediction, and proposes the tokens that come next.

    While the output's tokens are as predicted, the current place advances with them. After any
    other token, the place moves to the end of the longest n-gram in the prediction that the output
    also ends with. If the prediction contains that n-gram several times, the first occurrence after
    the previous place is used, because edits rarely change the order of a text.

    >>> prediction = Prediction(np.array([1, 2, 3, 4, 5, 6, 7, 8]))
    >>> prediction.lookup(np.array([1, 2, 3]), limit=2)
    Match(tokens=[4, 5], ngram_size=3)
    >>> prediction.lookup(np.array([1, 2, 3, 9, 5, 6, 7]), limit=2)
    Match(tokens=[8], ngram_size=3)
    """

    def __init__(self, tokens: NDArray[np.int32]) -> None:
        self._tokens = tokens
        self._place = 0  # index of the token that comes next
        self._matching = 0  # number of tokens before the place that equal the output's last tokens
        self._num_followed = 0  # number of the output's tokens that were processed

    def lookup(self, output: NDArray[np.int32], limit: int) -> Match | None:
        """Return at most ``limit`` tokens that come next, or None if too few tokens match.

        At the start of the output, the prediction counts as a match of maximum length.
        """
        new = output[self._num_followed :]
        self._num_followed = len(output)
        if np.array_equal(new, self._tokens[self._place : self._place + len(new)]):
            self._place += len(new)
            self._matching += len(new)
        else:
            self._search(output)
        size = self._matching if len(output) else MAX_MATCH
        tokens = self._tokens[self._place : self._place + limit].tolist()
        return Match(tokens, size) if tokens and size >= MIN_MATCH else None

    def _search(self, output: NDArray[np.int32]) -> None:
        places, size = find_occurrences(self._tokens, output, MAX_MATCH)
        self._matching = size
        if size:
            later = int(places.searchsorted(self._place))
            self._place = int(places[min(later, len(places) - 1)])
