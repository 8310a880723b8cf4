"""Separate reasoning, the block between `<think>` and `</think>`, from the answer.

The result depends only on the text, not on its division into chunks. Text that has been returned is
never taken back.
"""

from __future__ import annotations

from typing import NamedTuple

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
        self._held = ""  # a possible start of a tag, and white space before it
        self._thinks = self._at_edge = begun
        self._answers = False
        self._may_begin = True

    def feed(self, text: str) -> Split:
        text, self._held = self._held + text, ""
        if self._answers:
            return Split(content=self._inside(text))
        if self._may_begin:
            bare = text.lstrip(SPACE)
            if BEGIN.startswith(bare) and bare != BEGIN:
                self._held = text
                return Split()
            self._may_begin = False
            if bare.startswith(BEGIN):
                self._thinks = self._at_edge = True
                text = bare.removeprefix(BEGIN)
            elif not self._thinks:
                self._answers = True
                return Split(content=text)
        thoughts, end, answer = text.partition(END)
        if end:
            reasoning = self._inside(thoughts.rstrip(SPACE))
            self._answers = self._at_edge = True
            return Split(reasoning, self._inside(answer))
        length = _length_before_edge(thoughts)
        self._held = thoughts[length:]
        return Split(self._inside(thoughts[:length]))

    def end(self) -> Split:
        """Return the text that was held back until the end of the answer."""
        held, self._held = self._held, ""
        return Split(self._inside(held.rstrip(SPACE))) if self._thinks else Split(content=held)

    def _inside(self, text: str) -> str:
        if self._at_edge:
            text = text.lstrip(SPACE)
            self._at_edge = not text
        return text


def _length_before_edge(thoughts: str) -> int:
    """Return the length of the text before a possible start of the end tag and its white space."""
    begun = next(n for n in range(len(END) - 1, -1, -1) if thoughts.endswith(END[:n]))
    return len(thoughts[: len(thoughts) - begun].rstrip(SPACE))
