"""Arrange an answer as consecutive parts, for APIs whose answers are lists of parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic_core import from_json

from tandem.gateway.answers.state import AnswerDelta
from tandem.gateway.answers.writer import new_call_id

PartKind = Literal["reasoning", "text", "call"]


@dataclass
class AnswerPart:
    """A part of an answer. For a call, text is its arguments as JSON, and name its function."""

    kind: PartKind
    index: int
    name: str = ""
    text: str = ""
    id: str = field(default_factory=new_call_id)
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"


class Step(NamedTuple):
    """A part begins, grows by some text, or ends."""

    what: Literal["begins", "grows", "ends"]
    part: AnswerPart
    text: str = ""


class Parts:
    """The parts of one answer so far."""

    def __init__(self) -> None:
        self.all: list[AnswerPart] = []

    def add(self, delta: AnswerDelta) -> Iterator[Step]:
        """Yield the steps that a delta causes. Each part ends before the next one begins.

        An answer without any part gets an empty text.
        """
        calls = delta.calls
        if calls and calls[0].name is None:  # the rest of a call precedes new text
            yield from self._grow("call", calls[0].arguments)
            calls = calls[1:]
        yield from self._grow("reasoning", delta.reasoning)
        yield from self._grow("text", delta.text)
        for call in calls:
            yield from self._begin("call", call.name or "")
            yield from self._grow("call", call.arguments)
        if delta.finish_reason is not None:
            if not self.all:
                yield from self._begin("text")
            yield from self._end(cut=delta.finish_reason == "length")

    def _grow(self, kind: PartKind, text: str) -> Iterator[Step]:
        if not text:
            return
        if not self.all or self.all[-1].kind != kind:
            yield from self._begin(kind)
        self.all[-1].text += text
        yield Step("grows", self.all[-1], text)

    def _begin(self, kind: PartKind, name: str = "") -> Iterator[Step]:
        yield from self._end()
        self.all.append(AnswerPart(kind, len(self.all), name))
        yield Step("begins", self.all[-1])

    def _end(self, *, cut: bool = False) -> Iterator[Step]:
        """End the last part, if there is one.

        cut: whether the part is incomplete. For a call, its arguments show that instead.
        """
        if self.all:
            part = self.all[-1]
            cut = parsed(part.text) is None if part.kind == "call" else cut
            part.status = "incomplete" if cut else "completed"
            yield Step("ends", part)


def parsed(arguments: str) -> dict[str, object] | None:
    """Return the arguments of a call, or None if they are incomplete or aren't an object."""
    try:
        value = from_json(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
