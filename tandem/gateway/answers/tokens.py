"""Assign text to the tokens of an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tandem.contract import entry as tensors
from tandem.contract.tensor import Tensor
from tandem.gateway.triton.backend import ResponseChunk

# The outputs that describe the origin of each token.
ORIGINS = (
    tensors.OUTPUT_ROUNDS,
    tensors.OUTPUT_KINDS,
    tensors.OUTPUT_TEXT_LENGTHS,
    tensors.OUTPUT_REJECTED_IDS,
)
OF_TOKENS = (
    tensors.OUTPUT_ROUNDS,
    tensors.OUTPUT_KINDS,
    tensors.OUTPUT_REJECTED_IDS,
    tensors.OUTPUT_LOG_PROBS,
)


class AnswerToken(NamedTuple):
    """A token of an answer or of an echoed prompt, with its text.

    offset: start of the text in the answer, in characters. length: number of characters that the
    token completes; a stop string may leave fewer of them in the text. round, kind, rejected,
    log_prob: None unless requested; the first token of a prompt has no log_prob. rejected: the
    draft token that it replaces, or -1. top: the most likely tokens and their log-probabilities,
    best first.
    """

    offset: int
    text: str
    id: int
    length: int
    round: int | None
    kind: int | None
    rejected: int | None
    log_prob: float | None
    top: list[tuple[int, float]]


class TokenTexts:
    """Assigns the text of one answer to its tokens.

    Text that may be the start of a stop string arrives later than its tokens. So a token is held
    until its text has arrived.

    rest: text that doesn't belong to a complete token. end: number of characters received so far.
    """

    def __init__(self, offset: int) -> None:
        self._held: deque[tuple[Any, ...]] = deque()
        self._offset = offset  # start of the first held token, in characters
        self.rest = ""
        self.end = offset

    def complete(self, chunk: ResponseChunk) -> Iterator[AnswerToken]:
        """Yield the tokens whose text this chunk completes."""
        self.rest += chunk.text
        self.end += len(chunk.text)
        count = len(chunk.tokens)
        columns = (
            chunk.tokens,
            chunk.extras[tensors.OUTPUT_TEXT_LENGTHS],
            *(chunk.extras.get(name, [None] * count) for name in OF_TOKENS),
            top_tokens(chunk, tensors.OUTPUT_TOP_IDS, tensors.OUTPUT_TOP_LOG_PROBS, count),
        )
        self._held.extend(zip(*columns, strict=True))
        begin = 0
        while self._held:
            token, length, *others = self._held[0]
            # A token that is only part of a character has length 0. The next token shows whether it
            # is in the text.
            if chunk.finish_reason is None and begin + max(length, 1) > len(self.rest):
                break
            self._held.popleft()
            text = self.rest[begin : begin + length]
            yield AnswerToken(self._offset + begin, text, token, length, *others)
            begin += length
        self._offset += begin
        self.rest = self.rest[begin:]


def top_tokens(
    chunk: ResponseChunk, ids: Tensor, log_probs: Tensor, count: int
) -> Sequence[list[tuple[int, float]]]:
    """Return the most likely tokens at each of `count` positions; empty lists if not requested."""
    rows = zip(chunk.extras.get(ids, ()), chunk.extras.get(log_probs, ()), strict=True)
    return [list(zip(*row, strict=True)) for row in rows] or [[] for _ in range(count)]
