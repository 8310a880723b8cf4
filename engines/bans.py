"""Which tokens a call must not say next."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.engines.request import NO_IDS, EngineRequest, Ids


class Bans:
    """The bad words of a call, and what would end its answer while `min_tokens` are missing."""

    def __init__(self, request: EngineRequest, vocab_size: int) -> None:
        self._words = request.sampling.bad_words
        self._phrases = self._words.longest > 1
        self._owed_until = len(request.input_ids) + request.sampling.min_tokens
        self._ends = _ends(request, vocab_size) if request.sampling.min_tokens else NO_IDS

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


def _ends(request: EngineRequest, vocab_size: int) -> Ids:
    """Every id that ends an answer by itself."""
    stops = request.stop_words.singles
    stops = stops[(stops >= 0) & (stops < vocab_size)]
    return stops if request.end_id is None else np.append(stops, np.int32(request.end_id))
