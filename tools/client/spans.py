"""Which parts of a streamed text are accepted drafts or forced; the rest is the target's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from tandem.contract.entry import KINDS, Kind
from tandem.tools.client.client import AnswerChunk

# The kinds that a reader tells apart; the rest is the target's own.
TOLD: Final[tuple[Kind, ...]] = ("accepted", "forced")


class Span(NamedTuple):
    """Text of one origin. kind: one of ``TOLD``; None where it is the target's own."""

    text: str
    kind: Kind | None = None


class Spans:
    """Splits the chunks of one answer, whose tokens tell their kinds and the lengths of their text.

    A token may come sooner than its text, of which some is held back: it may be the beginning of a
    stop string.
    """

    def __init__(self) -> None:
        self._due: deque[tuple[Kind | None, int]] = deque()  # its kind, characters to come

    def split(self, chunk: AnswerChunk) -> Iterator[Span]:
        """Yield the spans of a chunk's text; joined, they are that text."""
        told = zip(chunk.kinds, chunk.text_lengths, strict=True)
        for number, length in told:
            kind = KINDS[number]
            self._due.append((kind if kind in TOLD else None, length))
        for origin, pieces in groupby(self._pieces(chunk.text), lambda piece: piece.kind):
            yield Span("".join(piece.text for piece in pieces), origin)

    def _pieces(self, text: str) -> Iterator[Span]:
        """The text of each token; the end of it may be no token's: an unfinished character."""
        while text and self._due:
            kind, length = self._due.popleft()
            if length > len(text):
                self._due.appendleft((kind, length - len(text)))
            if length:
                yield Span(text[:length], kind)
            text = text[length:]
        if text:
            yield Span(text)
