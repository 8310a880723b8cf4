"""Which text belongs to which token of an answer, and which round made it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from tandem.contract import entry as tensors
from tandem.contract.entry import KINDS
from tandem.gateway.protocol.responses import TokenDetail
from tandem.gateway.triton.backend import ResponseChunk

Row = TypeVar("Row")
# What is reported per token.
ORIGINS = (tensors.OUTPUT_ROUNDS, tensors.OUTPUT_KINDS, tensors.OUTPUT_TEXT_LENGTHS)


class TokenTexts(Generic[Row]):
    """Joins the tokens of one answer to its text.

    A token is complete when its text has come: what may be the beginning of a stop string comes
    later than its tokens. rest: text that belongs to no complete token.
    """

    def __init__(self, offset: int = 0) -> None:
        self._held: deque[tuple[int, Row]] = deque()
        self._offset = offset  # of the first token that is held, in characters
        self.rest = ""

    @property
    def end(self) -> int:
        """Where the text ends that has come, in characters."""
        return self._offset + len(self.rest)

    def completed(
        self, chunk: ResponseChunk, rows: Iterable[Row]
    ) -> Iterator[tuple[int, str, Row]]:
        """Yield the offset, the text and the row of each token that the next chunk completes.

        rows: one for each token of the chunk.
        """
        self.rest += chunk.text
        self._held.extend(zip(chunk.extras[tensors.OUTPUT_TEXT_LENGTHS], rows, strict=True))
        begin = 0
        while self._held:
            length, row = self._held[0]
            # A part of a character has no length: what follows it shows whether it is in the text.
            if chunk.finish_reason is None and begin + max(length, 1) > len(self.rest):
                break
            self._held.popleft()
            yield self._offset + begin, self.rest[begin : begin + length], row
            begin += length
        self._offset += begin
        self.rest = self.rest[begin:]


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
