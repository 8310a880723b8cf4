"""Which tokens a call must not say next: bad words, early ends, and what its masks disallow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.request import NO_IDS, EngineRequest, Ids, MaskWords


class Bans:
    """The bad words of a call, and what would end its answer while `min_tokens` are missing."""

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self._words = request.sampling.bad_words
        self._phrases = self._words.longest > 1
        self._owed_until = len(request.input_ids) + request.sampling.min_tokens
        self._ends = NO_IDS
        if request.sampling.min_tokens:  # every id that ends an answer by itself
            stops = request.stop_words.singles
            stops = stops[(stops >= 0) & (stops < vocab_size)]
            end = request.end_id
            self._ends = stops if end is None else np.append(stops, np.int32(end))

    def __bool__(self) -> bool:
        return len(self._words) > 0 or len(self._ends) > 0

    def behind(self, text: NDArray[Any]) -> Ids:
        """Return the ids that must not follow `text` [n], the context and what was said since."""
        banned = [self._words.singles]
        if self._phrases:
            banned.append(self._words.next_after(text))
        if len(text) < self._owed_until:
            banned.append(self._ends)
        return banned[0] if len(banned) == 1 else np.concatenate(banned)


class TokenMasks:
    """The rows of a call's `token_masks`, each read when its place is looked at.

    Without them every token may come, and this is False.
    """

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self._words = request.token_masks
        self._vocab_size = vocab_size
        self._start = len(request.input_ids)

    def __bool__(self) -> bool:
        return self._words is not None

    def allowed(self, position: int) -> NDArray[np.bool_]:
        """Return which ids may stand at an absolute position of the text: [vocab_size]."""
        bits = np.unpackbits(self.octets(position), count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def octets(self, position: int) -> NDArray[np.uint8]:
        """Return the same as bits: an id has bit (id % 8) of octet (id // 8)."""
        assert self._words is not None
        words: MaskWords = self._words[position - self._start].astype("<i4", copy=False)
        return words.view(np.uint8)
