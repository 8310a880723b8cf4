"""Which part of a streamed text came from accepted draft tokens, and which is the target's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tandem.tools.client.client import AnswerChunk

CompleteTexts = Callable[[Sequence[Sequence[int]]], list[str]]


class Span(NamedTuple):
    """Text of one origin."""

    text: str
    accepted: bool


class Spans:
    """Splits the chunks of one answer.

    complete_texts: the text of each row of ids that no further id can change. Lengths of such
    texts are places in the answer, whatever was held back of it when a chunk was sent: an
    unfinished character, or the possible beginning of a stop string. A character that several
    tokens make belongs to the last of them.

    A round's accepted tokens precede its own one. A chunk that carries several rounds, because
    text was held back, says only how many tokens were accepted in all: they are taken to come
    first.
    """

    def __init__(self, complete_texts: CompleteTexts) -> None:
        self._complete_texts = complete_texts
        self._ids: list[int] = []
        self._num_accepted = 0
        self._accepted: list[tuple[int, int]] = []  # places in the text, from and to
        self._shown = 0

    def split(self, chunk: AnswerChunk) -> Iterator[Span]:
        """Yield the spans of a chunk's text; joined, they are that text."""
        self._locate_accepted(chunk)
        self._ids += chunk.tokens
        begin, end = self._shown, self._shown + len(chunk.text)
        self._shown = end
        edges = {place for span in self._accepted for place in span if begin < place < end}
        places = [begin, *sorted(edges), end]
        for start, stop in pairwise(places):
            if start < stop:
                yield Span(chunk.text[start - begin : stop - begin], self._is_accepted(start))
        self._accepted = [span for span in self._accepted if span[1] > end]

    def _locate_accepted(self, chunk: AnswerChunk) -> None:
        count = min(chunk.totals.num_accepted_tokens - self._num_accepted, len(chunk.tokens))
        self._num_accepted = chunk.totals.num_accepted_tokens
        if count:
            rows = [self._ids, self._ids + chunk.tokens[:count]]
            before, after = map(len, self._complete_texts(rows))
            self._accepted.append((before, after))

    def _is_accepted(self, place: int) -> bool:
        return any(begin <= place < end for begin, end in self._accepted)
