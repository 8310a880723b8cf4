"""Find the end of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tandem.engines.request import EngineRequest, Ids


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
