"""Write answers of APIs that use lists of parts and named events."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pydantic_core import from_json

from tandem.gateway.answers.reasoning import END
from tandem.gateway.answers.writer import Object, Writer, json_bytes, new_call_id, sse
from tandem.gateway.protocol.adapted import AdaptedRequest

Asked = TypeVar("Asked", bound=AdaptedRequest)
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


class AdaptedWriter(Writer, Generic[Asked]):
    """Writes an answer as parts. Each part ends before the next one begins.

    asked: the request before its conversion to a chat; it has only one answer.
    """

    def __init__(self, asked: Asked, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._asked = asked
        [self._answer] = self.answers
        self._parts: list[AnswerPart] = []

    @abstractmethod
    def response(self) -> Object:
        """Return the response so far."""

    @abstractmethod
    def first_events(self) -> Iterator[Object]:
        """Yield the events that precede the first part."""

    @abstractmethod
    def begins(self, part: AnswerPart) -> Iterator[Object]:
        """Yield the events for the start of a part."""

    @abstractmethod
    def grows(self, part: AnswerPart, text: str) -> Iterator[Object]:
        """Yield the events for text that was added to a part."""

    @abstractmethod
    def ends(self, part: AnswerPart) -> Iterator[Object]:
        """Yield the events for the end of a part."""

    def whole(self) -> bytes:
        for _ in self._events():  # which aren't sent
            pass
        return json_bytes(self.response())

    def chunk(self, number: int) -> bytes:  # noqa: ARG002 there is one answer
        return b"".join(map(self.event, self._events()))

    def event(self, data: Mapping[str, Any]) -> bytes:
        return f"event: {data['type']}\n".encode() + sse(data)

    def _events(self) -> Iterator[Object]:
        """Add the last chunk to the parts, and yield its events.

        An empty answer gets one empty text part.
        """
        answer = self._answer
        if answer.first:
            yield from self.first_events()
        yield from self._grow("reasoning", answer.reasoning)
        for piece in answer.pieces:
            if isinstance(piece, str):
                yield from self._grow("text", piece)
                continue
            if piece.name is not None:
                yield from self._begin("call", piece.name)
            yield from self._grow("call", piece.arguments)
        if answer.finish_reason is not None:
            if not self._parts:
                yield from self._begin("text")
            yield from self._end(cut=answer.finish_reason == "length")

    def _grow(self, kind: PartKind, text: str) -> Iterator[Object]:
        if not text:
            return
        if not self._parts or self._parts[-1].kind != kind:
            yield from self._begin(kind)
        self._parts[-1].text += text
        yield from self.grows(self._parts[-1], text)

    def _begin(self, kind: PartKind, name: str = "") -> Iterator[Object]:
        yield from self._end()
        self._parts.append(AnswerPart(kind, len(self._parts), name))
        yield from self.begins(self._parts[-1])

    def _end(self, *, cut: bool = False) -> Iterator[Object]:
        """End the last part, if there is one.

        cut: whether the part is incomplete. For a call, its arguments show that instead.
        """
        if self._parts:
            part = self._parts[-1]
            cut = parse_arguments(part.text) is None if part.kind == "call" else cut
            part.status = "incomplete" if cut else "completed"
            yield from self.ends(part)

    @property
    def statistics(self) -> Object:
        """The additional fields of a chat's answer: statistics of speculation, and warnings."""
        found: Object = {"metrics": {"speculative_decoding": self.speculation}}
        if warnings := self._answer.warnings:
            found["warnings"] = warnings
        return found

    @property
    def cached(self) -> int:
        """Number of prompt tokens from the KV cache; 0 if the target doesn't report it."""
        return self._answer.num_cached_prompt_tokens or 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of tokens up to the end of the reasoning, including its tags."""
        if not any(part.kind == "reasoning" for part in self._parts):
            return 0
        ids = self._answer.ids

        def has_reasoned(count: int) -> bool:
            return END in self._tokenizer.decode(ids[:count])

        return bisect_left(range(len(ids)), True, key=has_reasoned)


def parse_arguments(arguments: str) -> dict[str, object] | None:
    """Return the arguments of a call, or None if they are incomplete or aren't an object."""
    try:
        value = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
