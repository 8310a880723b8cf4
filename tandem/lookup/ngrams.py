"""Lookup of a text's last tokens in its own earlier tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Match(NamedTuple):
    """The tokens that followed an earlier occurrence of a text's last ``ngram_size`` tokens."""

    tokens: list[int]
    ngram_size: int


def look_up(
    text: NDArray[np.int32],
    limit: int,
    *,
    max_ngram_size: int,
    keep_all: bool = True,
    use_oldest: bool = True,
    max_matching: int = 0,
) -> Match | None:
    """Return at most ``limit`` tokens that followed the longest n-gram that repeats at the end.

    use_oldest: use the n-gram's oldest occurrence, which has the most tokens after it. keep_all,
    without use_oldest: use the newest occurrence that ``limit`` tokens follow, or the oldest one if
    there is none. With neither, use the newest occurrence. max_matching: count up to this many
    matching tokens, even beyond the n-gram.

    Source: Saxena, "Prompt Lookup Decoding", 2023. The options are the same as in TensorRT-LLM's
    ``NGramDecodingConfig``.

    >>> look_up(np.array([1, 2, 3, 4, 1, 2]), limit=3, max_ngram_size=2)
    Match(tokens=[3, 4, 1], ngram_size=2)
    """
    places, size = find_occurrences(text[:-1], text, max_ngram_size)
    if not size:
        return None
    start = int(places[0])
    if not use_oldest and not keep_all:
        start = int(places[-1])
    elif not use_oldest:
        with_whole_draft = places[len(text) - places >= limit]
        start = int(with_whole_draft[-1]) if len(with_whole_draft) else start
    while size < min(max_matching, start) and text[start - size - 1] == text[-size - 1]:
        size += 1
    return Match(text[start : start + limit].tolist(), size)


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
