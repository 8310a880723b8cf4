"""Write the answers of /v1/responses."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from itertools import count
from typing import Any

from tandem.gateway.answers.adapted_writer import AdaptedWriter, AnswerPart
from tandem.gateway.answers.writer import Object
from tandem.gateway.errors import ApiError
from tandem.gateway.protocol.response_requests import ResponseRequest, TextFormat, TextOptions

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
