"""Bodies of /v1/messages and /v1/messages/count_tokens, Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, groupby
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from tandem.gateway.protocol.adapted import AdaptedRequest, unsupported_fields
from tandem.gateway.protocol.body import BodyObject, Strict
from tandem.gateway.protocol.fields import (
    IGNORED,
    Count,
    Texts,
    Unsupported,
    by_type,
    text_or_list,
)
from tandem.gateway.protocol.messages import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Parts,
    TextPart,
    join_text,
)


class ThinkingBlock(Strict):
    """The model's reasoning."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Strict):
    """Encrypted reasoning from another server, which is ignored."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Strict):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Strict):
    """The result of a call. Images are rejected."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Parts = []


Block = Annotated[
    Annotated[TextPart, Tag("dict[text]")]
    | Annotated[ThinkingBlock, Tag("dict[thinking]")]
    | Annotated[RedactedThinkingBlock, Tag("dict[redacted_thinking]")]
    | Annotated[ToolUseBlock, Tag("dict[tool_use]")]
    | Annotated[ToolResultBlock, Tag("dict[tool_result]")],
    by_type(
        "must be a block of type text, tool_use, tool_result or thinking; "
        "images and documents aren't supported",
    ),
]
Blocks = Annotated[
    list[Block],
    Field(fail_fast=True, max_length=MAX_PARTS),
    text_or_list(lambda text: {"type": "text", "text": text}),
]
# For each of these types of block, the only role whose messages may have it.
ROLES = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}


class AnthropicMessage(Strict):
    """A message. Unknown fields are ignored, including those in blocks."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    @model_validator(mode="after")
    def _blocks_have_their_role(self) -> AnthropicMessage:
        for block in self.content:
            role = ROLES.get(block.type, self.role)
            if role != self.role:
                rule = f"must have role {role} for its {block.type} block; got {self.role}"
                raise PydanticCustomError("role", "{rule}", {"rule": rule})
        return self


def _turn(role: str, blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """Return the messages for the chat: one per tool result, and one for the rest."""
    messages: list[dict[str, Any]] = []
    rest: dict[str, Any] = {"role": role, "content": []}
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            result = {"tool_call_id": block.tool_use_id, "content": join_text(block.content)}
            messages.append({"role": "tool", **result})
        elif isinstance(block, ToolUseBlock):
            arguments = json.dumps(block.input, ensure_ascii=False)
            function = {"name": block.name, "arguments": arguments}
            rest.setdefault("tool_calls", []).append({"id": block.id, "function": function})
        elif isinstance(block, ThinkingBlock):
            rest["reasoning_content"] = rest.get("reasoning_content", "") + block.thinking
        elif isinstance(block, TextPart):
            rest["content"].append(block.model_dump())
    return messages if messages and not rest["content"] else [*messages, rest]


class AnthropicTool(Strict):
    """A function that the model may call. Anthropic's own tools are rejected."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    @property
    def in_chat(self) -> dict[str, Any]:
        function = self.model_dump(include={"name", "description", "strict"}, exclude_none=True)
        return {"type": "function", "function": function | {"parameters": self.input_schema}}


class AnthropicToolChoice(BodyObject):
    """Whether the model must or may call tools, and which ones."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @property
    def in_chat(self) -> Any:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class OutputFormat(BodyObject):
    """A JSON schema that the answer must fit."""

    type: Literal["json_schema"]
    given: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(BodyObject):
    """Options for the answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class Thinking(Strict):
    """Whether the model thinks. Budgets have no effect."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


OWN_NAMES = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "tool_choice.function": "tool_choice",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


class CountRequest(AdaptedRequest):
    """A body of /v1/messages/count_tokens."""

    own_names = OWN_NAMES
    unsupported = unsupported_fields(
        OWN_NAMES,
        container=Unsupported("there are no containers"),
        mcp_servers=Unsupported("there are none; send tools", ([],)),
        stream_options=Unsupported("message_delta has the usage"),
        thread=Unsupported(
            "nothing is stored; send all messages", code="thread_unsupported_request"
        ),
    )
    ignored = IGNORED | {
        "cache_control",  # a prompt's KV cache is reused by its content
        "context_management",  # the messages are used as they are
        "diagnostics",  # nothing is stored
        "inference_geo",  # there is only one server
        "speed",  # there is only one
        "user_profile_id",  # users aren't distinguished
    }

    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    """The conversation; an assistant's message at its end is continued."""
    max_tokens: Count | None = None
    system: Parts = []
    """System message, a string or `text` blocks (default: none)."""
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True, max_length=MAX_TOOLS)] = []
    """Functions that the model may call; Anthropic's own tools are rejected."""
    tool_choice: AnthropicToolChoice | None = None
    """`auto`, `any`, `tool` or `none`, and `disable_parallel_tool_use` (default: `auto`)."""
    stop_sequences: Texts = []
    """The output ends before any of these."""
    thinking: Thinking | None = None
    """`disabled` works like a chat's `reasoning_effort: none`; budgets have no effect (default: the
    template's)."""
    output_config: OutputConfig | None = None
    """`format` with a JSON schema; `effort` is the chat's `reasoning_effort` (default: none)."""

    def to_chat_fields(self) -> dict[str, Any]:
        # Consecutive messages of one role are one turn, as in Anthropic's API.
        turns = groupby(self.messages, key=lambda message: message.role)
        blocks = ((role, chain.from_iterable(m.content for m in turn)) for role, turn in turns)
        messages = [message for turn in blocks for message in _turn(*turn)]
        # Claude Code's hash of the request, which would make each prompt's KV cache unusable
        parts = [p for p in self.system if not p.text.startswith("x-anthropic-billing-header")]
        if system := join_text(parts):
            messages.insert(0, {"role": "system", "content": system})
        last, choice = messages[-1], self.tool_choice
        output = self.output_config or OutputConfig()
        without = self.thinking is not None and self.thinking.type == "disabled"
        guide = output.format and {"name": "output", "schema": output.format.given}
        return {
            "messages": messages,
            "max_tokens": self.max_tokens,
            "continue_final_message": last["role"] == "assistant" and "tool_calls" not in last,
            "tools": [tool.in_chat for tool in self.tools],
            "tool_choice": choice and choice.in_chat,
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "stop": self.stop_sequences,
            "response_format": guide and {"type": "json_schema", "json_schema": guide},
            "reasoning_effort": "none" if without else output.effort,
        }


class AnthropicRequest(CountRequest):
    """A body of /v1/messages."""

    max_tokens: Count
    """Maximum length of the output, thinking included."""
