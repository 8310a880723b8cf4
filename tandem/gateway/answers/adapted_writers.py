"""Write the answers of /v1/messages and /v1/responses.

These APIs use lists of parts and named events.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from typing import Any, Generic, Literal, TypeVar

from pydantic_core import from_json

from tandem.gateway.answers.reasoning import END
from tandem.gateway.answers.writer import Object, Writer, json_bytes, new_call_id, sse
from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.adapted import AdaptedRequest
from tandem.gateway.protocol.anthropic_requests import AnthropicRequest
from tandem.gateway.protocol.response_requests import ResponseRequest, TextFormat, TextOptions

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


STOP_REASONS = {None: None, "stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
# Type and field of a delta, by kind of part.
DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


class AnthropicWriter(AdaptedWriter[AnthropicRequest]):
    """Writes a message that consists of blocks. Each part of the answer is a block."""

    prefix = "msg_"

    def response(self) -> Object:
        return {
            "id": self._fields["id"],
            "type": "message",
            "role": "assistant",
            "model": self._fields["model"],
            "content": [_block(part) for part in self._parts],
            **self._stopped,
            "usage": self._usage,
            **self.statistics,
        }

    @property
    def _stopped(self) -> Object:
        reason = STOP_REASONS[self._answer.finish_reason]
        sequence = self._answer.statistics.get("stop_string")
        if reason == "end_turn" and sequence is not None:
            reason = "stop_sequence"
        return {
            "stop_reason": reason,
            "stop_sequence": sequence if reason == "stop_sequence" else None,
        }

    @property
    def _usage(self) -> Object:
        return {
            "input_tokens": self.usage["prompt_tokens"] - self.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
            "output_tokens": self.usage["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": self.num_reasoning_tokens},
        }

    def first_events(self) -> Iterator[Object]:
        nothing = {"stop_reason": None, "stop_sequence": None}
        usage = {"input_tokens": self.usage["prompt_tokens"], "output_tokens": 0}
        yield {"type": "message_start", "message": self.response() | nothing | {"usage": usage}}

    def begins(self, part: AnswerPart) -> Iterator[Object]:
        yield {"type": "content_block_start", "index": part.index, "content_block": _block(part)}

    def grows(self, part: AnswerPart, text: str) -> Iterator[Object]:
        kind, field = DELTAS[part.kind]
        delta = {"type": kind, field: text}
        yield {"type": "content_block_delta", "index": part.index, "delta": delta}

    def ends(self, part: AnswerPart) -> Iterator[Object]:
        yield {"type": "content_block_stop", "index": part.index}

    def end(self) -> bytes:
        delta = {"type": "message_delta", "delta": self._stopped, "usage": self._usage}
        return self.event(delta | self.statistics) + self.event({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return self.event(self._asked.rename_fields(error).anthropic_body)


def _block(part: AnswerPart) -> Object:
    if part.kind == "call":
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.text)}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "text", "text": part.text}


def _input(arguments: str) -> Object:
    """Return the arguments of a call as an object. Incomplete JSON is read as far as it goes.

    Invalid JSON is returned as text, inside the object that Anthropic recommends for it.
    """
    if not arguments:
        return {}
    try:
        return parse_arguments(arguments) or from_json(
            arguments, allow_inf_nan=False, allow_partial=True
        )
    except ValueError:
        return {"INVALID_JSON": arguments}


STATUSES = {None: "in_progress", "length": "incomplete"}  # keyed by finish reason
PREFIXES = {"reasoning": "rs_", "text": "msg_", "call": "fc_"}  # prefixes of item ids
NAMES = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}


class ResponseWriter(AdaptedWriter[ResponseRequest]):
    """Writes a response that consists of items. Each part of the answer is an item."""

    prefix = "resp_"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._numbers = count()

    def response(self) -> Object:
        asked, chat, reason = self._asked, self._asked.chat, self._answer.finish_reason
        status = STATUSES.get(reason, "completed")
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        text, choice = asked.text or TextOptions(), asked.tool_choice
        response: Object = {
            "id": self._fields["id"],
            "object": "response",
            "created_at": self._fields["created"],
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": self._fields["model"],
            "output": [_item(part) for part in self._parts],
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": chat.reasoning_effort, "summary": None},
            "store": False,
            "temperature": chat.temperature,
            "text": {
                "format": (text.format or TextFormat(type="text")).model_dump(
                    by_alias=True, exclude_none=True
                ),
                "verbosity": chat.verbosity,
            },
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in asked.tools],
            "top_p": chat.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        if reason is None:
            return response
        usage = self.usage
        response["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.num_reasoning_tokens},
            "total_tokens": usage["total_tokens"],
        }
        return response | self.statistics

    def event(self, data: Any) -> bytes:
        return super().event({**data, "sequence_number": next(self._numbers)})

    def first_events(self) -> Iterator[Object]:
        # If this chunk is the only one, the answer already has a finish reason.
        begun = self.response() | {
            "status": "in_progress",
            "incomplete_details": None,
            "usage": None,
        }
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}

    def begins(self, part: AnswerPart) -> Iterator[Object]:
        added = "response.output_item.added"
        yield {"type": added, "output_index": part.index, "item": _item(part)}
        if part.kind != "call":
            place = _place(part)
            yield {"type": "response.content_part.added", **place, "part": _content(part)}

    def grows(self, part: AnswerPart, text: str) -> Iterator[Object]:
        delta: Object = {"type": f"{NAMES[part.kind]}.delta", **_place(part), "delta": text}
        yield delta | {"logprobs": []} if part.kind == "text" else delta

    def ends(self, part: AnswerPart) -> Iterator[Object]:
        done, place = f"{NAMES[part.kind]}.done", _place(part)
        if part.kind == "call":
            yield {"type": done, **place, "arguments": part.text, "name": part.name}
        else:
            log_probs: Object = {"logprobs": []} if part.kind == "text" else {}
            yield {"type": done, **place, "text": part.text, **log_probs}
            yield {"type": "response.content_part.done", **place, "part": _content(part)}
        done = "response.output_item.done"
        yield {"type": done, "output_index": part.index, "item": _item(part)}

    def end(self) -> bytes:
        response = self.response()
        return self.event({"type": f"response.{response['status']}", "response": response})

    def failure(self, error: ApiError) -> bytes:
        error = self._asked.rename_fields(error)
        code = "invalid_prompt"
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            code = "rate_limit_exceeded"
        elif error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            code = "server_error"
        why = {"code": code, "message": error.message}
        response = self.response() | {"status": "failed", "error": why}
        return self.event({"type": "response.failed", "response": response})


def _item_id(part: AnswerPart) -> str:
    return PREFIXES[part.kind] + part.id


def _place(part: AnswerPart) -> Object:
    place: Object = {"item_id": _item_id(part), "output_index": part.index}
    return place if part.kind == "call" else place | {"content_index": 0}


def _item(part: AnswerPart) -> Object:
    item: Object = {"id": _item_id(part), "status": part.status}
    if part.kind == "call":
        called = {"call_id": part.id, "name": part.name, "arguments": part.text}
        return {"type": "function_call", **item, **called}
    content = [] if part.status == "in_progress" else [_content(part)]
    if part.kind == "reasoning":
        return {"type": "reasoning", **item, "summary": [], "content": content}
    return {"type": "message", **item, "role": "assistant", "content": content}


def _content(part: AnswerPart) -> Object:
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": part.text}
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
