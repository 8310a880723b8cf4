"""Where an answer ends."""

from __future__ import annotations

from collections.abc import Sequence

from engines.request import EngineRequest


def cut(
    request: EngineRequest, before: Sequence[int], tokens: Sequence[int]
) -> tuple[list[int], bool]:
    """Cut new tokens at the call's limit, its end id (left out) or a stop word (kept).

    before: the call's new tokens so far. Returns what is left and whether an end was met in it.
    """
    kept = list(tokens[: request.max_new_tokens - len(before)])
    if request.end_id is not None and request.end_id in kept:
        return kept[: kept.index(request.end_id)], True
    if request.stop_words:
        text = list(before)
        for i, token in enumerate(kept):
            text.append(token)
            if any(tuple(text[-len(word) :]) == word for word in request.stop_words):
                return kept[: i + 1], True
    return kept, False
