"""Per-token details of a chunk, besides the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.contract.entry import KINDS, Kind

Counts: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
KindIndices: TypeAlias = NDArray[np.uint8]

NO_COUNTS: Counts = np.empty(0, np.int32)
_INDEX: dict[Kind, int] = {kind: index for index, kind in enumerate(KINDS)}


class TopLogProbs(NamedTuple):
    """The k most likely tokens at each of n positions, most likely first."""

    ids: NDArray[np.int32]  # [n, k]
    values: NDArray[np.float32]  # [n, k]


class TokenDetails(NamedTuple):
    """Details of n tokens.

    rounds: [n], number of the token's round in the answer, from 1. Each token without a draft is
        its own round. Forced tokens of a guide belong to the round before them, or to round 0.
    kinds: [n], indices into ``contract.entry.KINDS``.
    text_lengths: [n], number of characters that the token completes.
    log_probs: [n]. top_ids, top_log_probs: [n, k], see TopLogProbs.

    text_lengths, log_probs, top_ids and top_log_probs are None if not requested.
    """

    rounds: Counts
    kinds: KindIndices
    text_lengths: Counts | None = None
    log_probs: Floats | None = None
    top_ids: Counts | None = None
    top_log_probs: Floats | None = None

    def first(self, count: int) -> TokenDetails:
        columns: list[Any] = [None if rows is None else rows[:count] for rows in self]
        return TokenDetails(*columns)

    def with_log_probs(self, log_probs: Floats | None, top: TopLogProbs | None) -> TokenDetails:
        """Return the details with copies of the log-probabilities.

        log_probs, top: at least one row per token; further rows are ignored. A view would keep the
        engine's shared memory allocated until the request ends.
        """
        count = len(self.rounds)
        return self._replace(
            log_probs=None if log_probs is None else log_probs[:count].copy(),
            top_ids=None if top is None else top.ids[:count].copy(),
            top_log_probs=None if top is None else top.values[:count].copy(),
        )


def join_details(parts: Sequence[TokenDetails]) -> TokenDetails:
    """Concatenate details. A field that is None in any part is None in the result."""
    if len(parts) == 1:
        return parts[0]
    columns: list[Any] = [
        None if any(rows is None for rows in column) else np.concatenate(column)
        for column in zip(*parts, strict=True)
    ]
    return TokenDetails(*columns)


def round_details(
    number: int, count: int, num_accepted: int, num_draft_tokens: int
) -> TokenDetails:
    """Return the details of the ``count`` tokens that a round with a draft emitted.

    The token after the accepted tokens is a bonus token if all were accepted, else a correction.
    """
    last: Kind = "bonus" if num_accepted == num_draft_tokens else "correction"
    kinds = np.full(count, _INDEX[last], np.uint8)
    kinds[:num_accepted] = _INDEX["accepted"]
    return TokenDetails(np.full(count, number, np.int32), kinds)


def plain_details(before: int, count: int) -> TokenDetails:
    """Return the details of ``count`` plain target tokens. before: number of earlier rounds."""
    rounds = np.arange(before + 1, before + 1 + count, dtype=np.int32)
    return TokenDetails(rounds, np.full(count, _INDEX["plain"], np.uint8))


def unverified_details(number: int, count: int, kind: Literal["forced", "unknown"]) -> TokenDetails:
    """Return the details of tokens that belong to round ``number`` but weren't verified in it.

    kind: ``forced`` if a guide forces the tokens after that round; ``unknown`` if they come from an
    engine that drafts by itself, because it doesn't report which tokens were drafts.
    """
    return TokenDetails(np.full(count, number, np.int32), np.full(count, _INDEX[kind], np.uint8))
