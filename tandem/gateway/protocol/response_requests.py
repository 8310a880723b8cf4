"""Request bodies of /v1/responses, OpenAI's Responses API.

Its input and output are lists of items. The server stores nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, field_validator, model_validator

from tandem.gateway.protocol.adapted import AdaptedRequest, unsupported_fields
from tandem.gateway.protocol.body import BodyObject, Strict
from tandem.gateway.protocol.fields import (
    IGNORED,
    Count,
    Unsupported,
    by_type,
    field_error,
    text_or_list,
)
from tandem.gateway.protocol.messages import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Function,
    ToolChoiceOf,
    join_text,
)

_STATELESS = "nothing is stored; send the whole conversation as input"


class InputText(Strict):
    """A part of a message or of a function's output. Images and files are rejected."""

    type: Literal["input_text", "output_text"]
    text: str


Texts = Annotated[
    list[InputText],
    Field(fail_fast=True, max_length=MAX_PARTS),
    text_or_list(lambda text: {"type": "input_text", "text": text}),
]


class MessageItem(Strict):
    """A message."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts


class CallItem(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = "{}"


class OutputItem(Strict):
    """The output of a called function."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ReasoningText(Strict):
    """A part of the model's reasoning."""

    text: str


class ReasoningItem(Strict):
    """The model's reasoning. Summaries and encrypted reasoning from other servers are ignored."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None


Item = Annotated[
    Annotated[MessageItem, Tag("dict[message]")]
    | Annotated[CallItem, Tag("dict[function_call]")]
    | Annotated[OutputItem, Tag("dict[function_call_output]")]
    | Annotated[ReasoningItem, Tag("dict[reasoning]")],
    by_type(
        "must be an item of type message, function_call, function_call_output or reasoning",
        default="message",
    ),
]
Items = Annotated[
    list[Item],
    Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES),
    text_or_list(lambda text: {"role": "user", "content": text}),
]


class FunctionTool(Function):
    """A function that the model may call. Other tools are rejected."""

    type: Literal["function"]

    @property
    def in_chat(self) -> dict[str, Any]:
        function = self.model_dump(exclude={"type"}, exclude_none=True)
        return {"type": "function", "function": function}


class ToolChoiceFunction(BodyObject):
    """The function that the model must call."""

    type: Literal["function"]
    name: str

    @property
    def in_chat(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name}}


class ToolChoiceAllowed(BodyObject):
    """The functions that the model may call, and whether it must call one."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoiceFunction], Field(fail_fast=True, max_length=MAX_TOOLS)]

    @property
    def in_chat(self) -> dict[str, Any]:
        tools = [tool.in_chat for tool in self.tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}


class TextFormat(BodyObject):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    given: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _schema_has_a_name(self) -> TextFormat:
        if self.type == "json_schema" and self.name is None:
            raise field_error("name", "{path} is missing")
        return self

    @property
    def in_chat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        named = self.model_dump(by_alias=True, exclude={"type"})
        return {"type": self.type, "json_schema": named}


class TextOptions(BodyObject):
    """Options for the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Strict):
    """Options for reasoning. Only the effort has an effect."""

    effort: str | None = None


OWN_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "tool_choice.allowed_tools": "tool_choice",
}


class ResponseRequest(AdaptedRequest):
    """A body of /v1/responses."""

    own_names = OWN_NAMES
    unsupported = unsupported_fields(
        OWN_NAMES,
        background=Unsupported("answers are sent while the client waits", (False,)),
        context_management=Unsupported("the input is used as it is"),
        conversation=Unsupported(_STATELESS),
        previous_response_id=Unsupported(_STATELESS),
        prompt=Unsupported("nothing is stored; send instructions and input"),
        store=Unsupported("nothing is stored; send false", (False,)),
        truncation=Unsupported("a prompt that is too long gets an error", ("disabled",)),
    )
    ignored = IGNORED - {"metadata", "store"} | {
        "client_metadata",  # nothing is stored
        "max_tool_calls",  # it limits OpenAI's own tools
        "stream_options",  # the last event always has the usage, and events aren't padded
    }

    input: Items
    """A string, or items: messages, function calls, their outputs and reasoning."""
    instructions: str | None = None
    """A system message before the input (default: none)."""
    max_output_tokens: Count | None = None
    """Maximum length of the output, reasoning included (default: as many as fit)."""
    tools: Annotated[list[FunctionTool], Field(fail_fast=True, max_length=MAX_TOOLS)] = []
    """Functions that the model may call; OpenAI's own tools are rejected."""
    tool_choice: ToolChoiceOf[ToolChoiceAllowed, ToolChoiceFunction] = "auto"
    """As in a chat, with OpenAI's flat objects."""
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    """`format` (`text`, `json_object` or `json_schema`) and `verbosity`."""
    reasoning: Reasoning | None = None
    """`effort` is the chat's `reasoning_effort`."""
    include: list[str] = []
    """Accepted without effect, except for log-probabilities, which are rejected."""
    metadata: dict[str, str] = {}
    """Returned in the response."""

    @field_validator("include")
    @classmethod
    def _without_log_probs(cls, names: list[str]) -> list[str]:
        if "message.output_text.logprobs" in names:
            why = "send logprobs to /v1/chat/completions"
            message = f"field 'include' is not supported for log-probabilities: {why}"
            raise field_error("include", message, "unsupported_field")
        return names

    def to_chat_fields(self) -> dict[str, Any]:
        text = self.text or TextOptions()
        choice = self.tool_choice
        return {
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens,
            "tools": [tool.in_chat for tool in self.tools],
            "tool_choice": choice if isinstance(choice, str) else choice.in_chat,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": text.format and text.format.in_chat,
            "verbosity": text.verbosity,
            "reasoning_effort": self.reasoning and self.reasoning.effort,
        }

    def _messages(self) -> list[dict[str, Any]]:
        """Return the messages for the chat. One assistant message holds all items of its turn."""
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for item in self.input:
            if isinstance(item, OutputItem):
                output = {"tool_call_id": item.call_id, "content": join_text(item.output)}
                messages.append({"role": "tool", **output})
            elif isinstance(item, MessageItem) and item.role != "assistant":
                messages.append({"role": item.role, "content": join_text(item.content)})
            else:
                _add_to_turn(messages, item)
        return messages


def _add_to_turn(
    messages: list[dict[str, Any]], item: CallItem | MessageItem | ReasoningItem
) -> None:
    """Add an item to the assistant's last message, or to a new one if it can't go there."""
    turn = messages[-1] if messages else {}
    full = "tool_calls" in turn or turn.get("content")
    ends = isinstance(item, ReasoningItem) or (isinstance(item, MessageItem) and full)
    if turn.get("role") != "assistant" or ends:
        turn = {"role": "assistant", "content": ""}
        messages.append(turn)
    if isinstance(item, MessageItem):
        turn["content"] = join_text(item.content)
    elif isinstance(item, CallItem):
        function = {"name": item.name, "arguments": item.arguments}
        turn.setdefault("tool_calls", []).append({"id": item.call_id, "function": function})
    else:
        turn["reasoning_content"] = join_text(item.content or ())
