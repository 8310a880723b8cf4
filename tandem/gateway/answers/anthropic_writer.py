"""Write the answers of /v1/messages."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_core import from_json

from tandem.gateway.answers.adapted_writer import AdaptedWriter, AnswerPart, parse_arguments
from tandem.gateway.answers.writer import Object
from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.anthropic_requests import AnthropicRequest

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
