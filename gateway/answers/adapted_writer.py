"""Write answers of APIs that use lists of parts and named events."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic_core import to_json

from tandem.gateway.answers.parts import Parts, Step
from tandem.gateway.answers.reasoning import END
from tandem.gateway.answers.writer import Writer, sse
from tandem.gateway.protocol.adapted import AdaptedRequest
from tandem.gateway.triton.backend import ResponseChunk

Asked = TypeVar("Asked", bound=AdaptedRequest)
Object = dict[str, Any]


class AdaptedWriter(Writer, Generic[Asked]):
    """Writes the only answer to a request. asked: the request before its conversion to a chat."""

    def __init__(self, asked: Asked, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._asked = asked
        [self._answer] = self.answers
        self._parts = Parts()
        self._ids: list[int] = []

    @abstractmethod
    def response(self) -> Object:
        """Return the response so far."""

    @abstractmethod
    def first_events(self) -> Iterator[Object]:
        """Yield the events that precede the first part."""

    @abstractmethod
    def events(self, step: Step) -> Iterator[Object]:
        """Yield the events for a step."""

    def whole(self, chunks: Sequence[ResponseChunk]) -> bytes:
        self.chunk(0, chunks[0])  # its events aren't sent
        return to_json(self.response())

    def chunk(self, number: int, chunk: ResponseChunk) -> bytes:  # noqa: ARG002 there is one answer
        delta = self._answer.delta(chunk)
        events = [*self.first_events()] if delta.first else []
        self._ids += chunk.tokens
        for step in self._parts.add(delta):
            events += self.events(step)
        return b"".join(map(self.event, events))

    def event(self, data: Mapping[str, Any]) -> bytes:
        return f"event: {data['type']}\n".encode() + sse(to_json(data))

    @property
    def statistics(self) -> Object:
        """The additional fields of a chat's answer: statistics of speculation, and warnings."""
        found: Object = {"metrics": {"speculative_decoding": self.speculation.model_dump()}}
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
        if not any(part.kind == "reasoning" for part in self._parts.all):
            return 0

        def has_reasoned(count: int) -> bool:
            return END in self._tokenizer.decode(self._ids[:count])

        return bisect_left(range(len(self._ids)), True, key=has_reasoned)
