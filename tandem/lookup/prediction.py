"""Lookup in a predicted output, such as a file before an edit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.lookup.ngrams import Match, find_occurrences
from tandem.lookup.pools import MAX_MATCH, MIN_MATCH


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
