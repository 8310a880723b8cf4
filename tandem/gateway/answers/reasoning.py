"""Separate reasoning, the block between `<think>` and `</think>`, from the answer.

The result depends only on the text, not on its division into chunks. Text that has been returned is
never taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tandem.gateway.tool_calls import partition

BEGIN, END = "<think>", "</think>"
SPACE = " \t\r\n"


class Split(NamedTuple):
    """The next part of an answer."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """Separates reasoning from the answer as the text arrives, and strips white space around it.

    begun: whether the prompt ends with the opening tag. The model may still repeat the tag.
    """

    def __init__(self, *, begun: bool) -> None:
        self._text = ""  # not returned yet
        self._new = Split()
        self._thinks = begun
        self._splitting = self._split()

    def feed(self, text: str, *, last: bool = False) -> Split:
        """Return the next part. last: whether the answer ends, so that nothing is held back."""
        self._new = Split()
        self._text += text
        next(self._splitting)
        if not last:
            return self._new
        reasoning, content = self._new
        if self._thinks:
            return Split(reasoning + self._text.rstrip(SPACE))
        return Split(reasoning, content + self._text)

    def _split(self) -> Iterator[None]:
        """Consume the text. Yield whenever more of it is needed."""
        if self._thinks:
            yield from self._skip_space()
        while (bare := self._text.lstrip(SPACE)) != BEGIN and BEGIN.startswith(bare):
            yield
        if bare.startswith(BEGIN):
            self._thinks, self._text = True, bare.removeprefix(BEGIN)
            yield from self._skip_space()
        while self._thinks:
            thoughts, end, rest = partition(self._text, END)
            shown = thoughts.rstrip(SPACE)
            self._new = Split(self._new.reasoning + shown)
            self._text = rest if end else self._text[len(shown) :]
            if end:
                self._thinks = False
                yield from self._skip_space()
            else:
                yield
        while True:
            self._new, self._text = self._new._replace(content=self._text), ""
            yield

    def _skip_space(self) -> Iterator[None]:
        """Drop white space up to other text."""
        while not (bare := self._text.lstrip(SPACE)):
            self._text = ""
            yield
        self._text = bare
