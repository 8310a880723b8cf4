"""Which tokens may come at each place of a call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tandem.engines.request import EngineRequest, MaskWords


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
