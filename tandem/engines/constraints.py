"""Tokens that a call must not generate next: bad words, early ends and masked tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.ending import ending_ids
from tandem.engines.request import NO_IDS, EngineRequest, Ids, MaskWords


class Bans:
    """A call's bad words, and the tokens that would end its answer before `min_tokens`."""

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self._words = request.sampling.bad_words
        self._phrases = self._words.longest > 1
        self._owed_until = len(request.input_ids) + request.sampling.min_tokens
        self._ends = NO_IDS
        if request.sampling.min_tokens:
            self._ends = ending_ids(request, vocab_size)

    def __bool__(self) -> bool:
        return len(self._words) > 0 or len(self._ends) > 0

    def after(self, text: NDArray[Any]) -> Ids:
        """Return the ids that must not follow `text` [n], the context and the answer so far."""
        banned = [self._words.singles]
        if self._phrases:
            banned.append(self._words.next_after(text))
        if len(text) < self._owed_until:
            banned.append(self._ends)
        return banned[0] if len(banned) == 1 else np.concatenate(banned)


class TokenMasks:
    """The rows of a call's `token_masks`, looked up by position.

    Without masks, every token is allowed and the object is falsy.
    """

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self._words = request.token_masks
        self._vocab_size = vocab_size
        self._start = len(request.input_ids)

    def __bool__(self) -> bool:
        return self._words is not None

    def allowed_mask(self, position: int) -> NDArray[np.bool_]:
        """Return whether each id is allowed at `position`: [vocab_size].

        position: absolute position in the sequence.
        """
        bits = np.unpackbits(self.allowed_bits(position), count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def allowed_bits(self, position: int) -> NDArray[np.uint8]:
        """Return the allowed ids as bits: bit (id % 8) of byte (id // 8)."""
        assert self._words is not None
        words: MaskWords = self._words[position - self._start].astype("<i4", copy=False)
        return words.view(np.uint8)
