"""Per-token details of a chunk, besides the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.bls.request import TokenIds
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
    rejected_ids: [n], the draft token that a correction replaces; otherwise -1.
    text_lengths: [n], number of characters that the token completes.
    log_probs: [n]. top_ids, top_log_probs: [n, k], see TopLogProbs.

    text_lengths, log_probs, top_ids and top_log_probs are None if not requested.
    """

    rounds: Counts
    kinds: KindIndices
    rejected_ids: Counts
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
    number: int, tokens: TokenIds, num_accepted: int, draft: TokenIds
) -> TokenDetails:
    """Return the details of the tokens that a round with a draft emitted.

    The token after the accepted tokens is a bonus token if all were accepted, else a correction. If
    it equals the draft token, the target stopped early and rejected nothing.
    """
    count = len(tokens)
    kind: Kind = "bonus" if num_accepted == len(draft) else "correction"
    kinds = np.full(count, _INDEX[kind], np.uint8)
    kinds[:num_accepted] = _INDEX["accepted"]
    rejected = np.full(count, -1, np.int32)
    if count <= len(draft) and tokens[-1] != draft[count - 1]:
        rejected[-1] = draft[count - 1]
    return TokenDetails(np.full(count, number, np.int32), kinds, rejected)


def plain_details(before: int, count: int) -> TokenDetails:
    """Return the details of ``count`` plain target tokens. before: number of earlier rounds."""
    rounds = np.arange(before + 1, before + 1 + count, dtype=np.int32)
    return _undrafted(rounds, "plain")


def unverified_details(number: int, count: int, kind: Literal["forced", "unknown"]) -> TokenDetails:
    """Return the details of tokens that belong to round ``number`` but weren't verified in it.

    kind: ``forced`` if a guide forces the tokens after that round; ``unknown`` if they come from an
    engine that drafts by itself, because it doesn't report which tokens were drafts.
    """
    return _undrafted(np.full(count, number, np.int32), kind)


def _undrafted(rounds: Counts, kind: Kind) -> TokenDetails:
    count = len(rounds)
    return TokenDetails(
        rounds, np.full(count, _INDEX[kind], np.uint8), np.full(count, -1, np.int32)
    )
