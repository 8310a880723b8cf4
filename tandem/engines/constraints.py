"""What ends an answer, and which tokens must not come next: bad words, early ends, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandem.engines.engine import NO_IDS, EngineRequest, Ids, MaskWords


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


class Cut(NamedTuple):
    """New tokens, cut at the end of the answer.

    tokens: the part that belongs to the answer. ended: whether the answer ends here before its
    length limit. surplus: number of tokens after the one that ended the answer, or after the limit.
    In a verification, these are accepted draft tokens and the token that the target added. The
    token that ends an answer counts as the target's own, so `surplus` is subtracted from the
    accepted tokens.
    """

    tokens: list[int]
    ended: bool
    surplus: int


def cut(request: EngineRequest, before: Sequence[int], tokens: Sequence[int]) -> Cut:
    """Cut new tokens at the call's limit, its end id (removed) or a stop word (kept).

    before: the tokens that the call has generated so far. Stop words end the answer only after
    `min_tokens` tokens.
    """
    kept = list(tokens[: request.max_new_tokens - len(before)])
    end = stop = len(kept)
    if request.end_id is not None and request.end_id in kept:
        end = kept.index(request.end_id)
    if request.stop_words:
        missing = max(0, request.sampling.min_tokens - len(before))
        found = request.stop_words.first_end(before, kept, missing)
        stop = len(kept) if found is None else found
    if stop < end:
        return Cut(kept[: stop + 1], True, len(tokens) - stop - 1)
    if end < len(kept):
        return Cut(kept[:end], True, len(tokens) - end - 1)
    return Cut(kept, False, len(tokens) - len(kept))


def ending_ids(request: EngineRequest, vocab_size: int) -> Ids:
    """Return the ids that each end the answer: the end id and stop words of one token.

    Ids outside the vocabulary are omitted.
    """
    stops = request.stop_words.singles
    stops = stops[(stops >= 0) & (stops < vocab_size)]
    return stops if request.end_id is None else np.append(stops, np.int32(request.end_id))
