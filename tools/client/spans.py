"""Which part of a streamed text came from accepted draft tokens, and which is the target's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from tandem.contract.entry import KINDS
from tandem.tools.client.client import AnswerChunk

ACCEPTED = KINDS.index("accepted")


class Span(NamedTuple):
    """Text of one origin."""

    text: str
    accepted: bool


class Spans:
    """Splits the chunks of one answer, whose tokens tell their kinds and the lengths of their text.

    A token may come sooner than its text, of which some is held back: it may be the beginning of a
    stop string.
    """

    def __init__(self) -> None:
        self._due: deque[tuple[bool, int]] = deque()  # whether accepted, characters to come

    def split(self, chunk: AnswerChunk) -> Iterator[Span]:
        """Yield the spans of a chunk's text; joined, they are that text."""
        told = zip(chunk.kinds, chunk.text_lengths, strict=True)
        self._due.extend((kind == ACCEPTED, length) for kind, length in told)
        for accepted, pieces in groupby(self._pieces(chunk.text), lambda piece: piece.accepted):
            yield Span("".join(piece.text for piece in pieces), accepted)

    def _pieces(self, text: str) -> Iterator[Span]:
        """The text of each token; the end of it may be no token's: an unfinished character."""
        while text and self._due:
            accepted, length = self._due.popleft()
            if length > len(text):
                self._due.appendleft((accepted, length - len(text)))
            if length:
                yield Span(text[:length], accepted)
            text = text[length:]
        if text:
            yield Span(text, accepted=False)
