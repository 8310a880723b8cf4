"""What speculation did for a request: its statistics, and where each token came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

from tandem.gateway.schema import Kind, SpeculativeDecoding, TokenDetail
from tandem.gateway.tokenizer import TokenTexts
from tandem.gateway.triton import ResponseChunk

NO_CHUNK = ResponseChunk("", [], 0, 0, 0)


def speculative_decoding(statistics: Iterable[Mapping[str, Any]]) -> SpeculativeDecoding:
    """Add up the statistics of a request's answers."""
    given = list(statistics)
    steps, drafted, accepted = (
        sum(one[name] for one in given)
        for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    )
    histograms = [one["acceptance_histogram"] for one in given]
    return SpeculativeDecoding(
        num_spec_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_draft_tokens=accepted,
        draft_acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=1 + accepted / steps if steps else 1.0,
        acceptance_histogram=[sum(counts) for counts in zip_longest(*histograms, fillvalue=0)],
    )


class TokenOrigins:
    """Finds, for each token of one answer, its round and its kind.

    A chunk is a round, unless text was held back: of a chunk that carries several rounds only the
    accepted tokens in all are known, and they are taken to come first.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._last = NO_CHUNK

    def details(self, chunk: ResponseChunk) -> list[TokenDetail]:
        """Return the details of the tokens of the next chunk."""
        kinds = self._kinds(chunk)
        rounds = self._rounds(chunk)
        self._last = chunk
        return [
            TokenDetail(id=token, text=self._texts.add(token), round=round_, kind=kind)
            for token, round_, kind in zip(chunk.tokens, rounds, kinds, strict=True)
        ]

    def _kinds(self, chunk: ResponseChunk) -> list[Kind]:
        count = len(chunk.tokens)
        drafted = chunk.num_draft_tokens - self._last.num_draft_tokens
        if not drafted:
            plain: Kind = "plain"
            return [plain] * count
        accepted = min(chunk.num_accepted_tokens - self._last.num_accepted_tokens, count)
        kept: Kind = "accepted"
        own: Kind = "correction" if accepted < drafted else "bonus"
        return [kept] * accepted + [own] * (count - accepted)

    def _rounds(self, chunk: ResponseChunk) -> list[int]:
        """A plain token is a round of its own."""
        count = len(chunk.tokens)
        if chunk.num_draft_tokens != self._last.num_draft_tokens:
            return [chunk.num_rounds] * count
        return [max(1, chunk.num_rounds - behind) for behind in reversed(range(count))]
