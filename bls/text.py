"""The text of an answer while it grows: which part of it is final, and where a stop string ends it.

`postprocessing` is stateless. It is given a window of ids and how many of them were already shown,
and returns the text that the rest adds, less an unfinished UTF-8 sequence. The window starts at the
ids that last produced text, so it stays a few tokens long. What is withheld is completed by later
ids, or shown at the end, when the whole answer is decoded once: the chunks therefore always join to
the text that an answer without streaming has.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from bls.effects import TextCall
from bls.request import Request, TokenIds
from bls.sequence import Sequence
from bls.stop_strings import StopStrings


class TextSoFar:
    """Turns the tokens of each round into text that may be shown."""

    def __init__(self, request: Request) -> None:
        self._each_round = request.needs_text_each_round
        self._stops = StopStrings(request.stop_strings)
        self._window_start = 0
        self._shown = 0  # output tokens that have been decoded
        self._length = 0  # characters received for them

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stops.found

    def extend(
        self, sequence: Sequence, tokens: TokenIds
    ) -> Generator[TextCall, str, tuple[str, int]]:
        """Return what ``tokens`` add to the visible text, and how many of them the answer keeps.

        The token that completes a stop string is the last one kept.
        """
        if not self._each_round or len(tokens) == 0:
            return "", len(tokens)
        window = np.concatenate([sequence.output[self._window_start :], tokens])
        context_length = self._shown - self._window_start
        text = yield TextCall(window, context_length)
        if self._stops.would_find(text):
            text, kept = yield from self._until_stop(window, context_length, text)
            return self._stops.feed(text), kept
        if text:
            self._window_start = self._shown
        self._shown += len(tokens)
        self._length += len(text)
        return self._stops.feed(text), len(tokens)

    def finish(self, sequence: Sequence) -> Generator[TextCall, str, str]:
        """Return the rest of the text, when the answer is complete."""
        if self.stopped or sequence.num_output_tokens == 0:
            return ""
        whole = yield TextCall(sequence.output, None)
        return self._stops.feed(whole[self._length :]) + self._stops.flush()

    def _until_stop(
        self, window: TokenIds, context_length: int, text: str
    ) -> Generator[TextCall, str, tuple[str, int]]:
        """Return the text up to the token that completes a stop string, and the tokens of it.

        What follows may complete a second one that begins earlier: token by token, it never would.
        """
        for end in range(context_length + 1, len(window)):
            shorter = yield TextCall(window[:end], context_length)
            if self._stops.would_find(shorter):
                return shorter, end - context_length
        return text, len(window) - context_length
