"""What a chunk reports about its tokens besides their ids: one row per token."""

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
    """The k most likely tokens at each of n positions, best first, with log-probabilities."""

    ids: NDArray[np.int32]  # [n, k]
    values: NDArray[np.float32]  # [n, k]


class TokenDetails(NamedTuple):
    """Facts about n tokens, in their order.

    rounds: [n], counted from 1 in the whole answer; without drafts every token is a round. Forced
        tokens of a guide belong to the round before them, or to round 0 at the start.
    kinds: [n], indices of ``contract.entry.KINDS``.
    text_lengths: [n], characters that a token completes. This and the rest are None if not wanted.
    log_probs: [n]. top_ids, top_log_probs: [n, k], see TopLogProbs.
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
        """Add copies of the log-probabilities of at least these tokens.

        A view would hold an engine's shared memory until the request ends.
        """
        count = len(self.rounds)
        return self._replace(
            log_probs=None if log_probs is None else log_probs[:count].copy(),
            top_ids=None if top is None else top.ids[:count].copy(),
            top_log_probs=None if top is None else top.values[:count].copy(),
        )


def joined(parts: Sequence[TokenDetails]) -> TokenDetails:
    """Return the details of all tokens. What any part lacks is None."""
    if len(parts) == 1:
        return parts[0]
    return TokenDetails(*map(_joined, zip(*parts, strict=True)))


def _joined(columns: tuple[Any, ...]) -> Any:
    return None if any(rows is None for rows in columns) else np.concatenate(columns)


def of_round(number: int, count: int, num_accepted: int, num_draft_tokens: int) -> TokenDetails:
    """Return the details of the ``count`` tokens that a round with a draft emitted.

    The token after the accepted ones is the target's own: a bonus if all were accepted.
    """
    own: Kind = "bonus" if num_accepted == num_draft_tokens else "correction"
    kinds = np.full(count, _INDEX[own], np.uint8)
    kinds[:num_accepted] = _INDEX["accepted"]
    return TokenDetails(np.full(count, number, np.int32), kinds)


def of_plain_tokens(before: int, count: int) -> TokenDetails:
    """Return the details of tokens that the target decoded alone, after ``before`` rounds."""
    rounds = np.arange(before + 1, before + 1 + count, dtype=np.int32)
    return TokenDetails(rounds, np.full(count, _INDEX["plain"], np.uint8))


def of_other_tokens(number: int, count: int, kind: Literal["forced", "unknown"]) -> TokenDetails:
    """Return the details of tokens that belong to round ``number`` but were not verified in it.

    forced: a guide forces them after that round. unknown: they come from an engine that drafts by
    itself, which reports neither which tokens were drafts nor where its rounds began.
    """
    return TokenDetails(np.full(count, number, np.int32), np.full(count, _INDEX[kind], np.uint8))
