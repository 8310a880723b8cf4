"""What speculation did for a request: its statistics, and where each token came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

from tandem.contract import entry as tensors
from tandem.contract.entry import KINDS
from tandem.gateway.answers.tokens import TokenTexts
from tandem.gateway.protocol.responses import SpeculativeDecoding, TokenDetail
from tandem.gateway.triton.backend import ResponseChunk

# What is told of each token.
ORIGINS = (tensors.OUTPUT_ROUNDS, tensors.OUTPUT_KINDS, tensors.OUTPUT_TEXT_LENGTHS)


def speculative_decoding(statistics: Iterable[Mapping[str, Any]]) -> SpeculativeDecoding:
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
    """Finds, for each token of one answer, its text, its round and its kind.

    Together the texts are the answer's.
    """

    def __init__(self) -> None:
        self._texts: TokenTexts[tuple[int, int, int]] = TokenTexts()

    def details(self, chunk: ResponseChunk) -> list[TokenDetail]:
        columns = (chunk.extras[name] for name in (tensors.OUTPUT_ROUNDS, tensors.OUTPUT_KINDS))
        rows = zip(chunk.tokens, *columns, strict=True)
        told = [
            TokenDetail(id=token, text=text, round=round_, kind=KINDS[kind])
            for _, text, (token, round_, kind) in self._texts.completed(chunk, rows)
        ]
        if chunk.finish_reason is not None and told:
            told[-1].text += self._texts.rest  # an unfinished character, which no token completes
        return told
