"""The messages of a chat as clients send them, its tools, and which of them may be called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AliasChoices, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from tandem.gateway.errors import bad_request
from tandem.gateway.protocol.body import BodyObject, Strict
from tandem.gateway.protocol.fields import TOO_DEEP, find_unreadable, text_or_list

Allowed = TypeVar("Allowed")
Named = TypeVar("Named")

MAX_TOOLS = 128


class Function(Strict):
    """A function that a model may call.

    parameters: JSON schema of the arguments; None: no arguments. strict: whether to enforce the
    schema.
    """

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that a model may call."""

    type: Literal["function"]
    function: Function

    @property
    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)]


class AllowedTools(BodyObject):
    """The names of the tools that the model may call, and whether it must call one."""

    mode: Literal["auto", "required"]
    tools: Annotated[Tools, Field(min_length=1)]


class AllowedToolChoice(BodyObject):
    """A tool choice that allows only some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class NamedFunction(BodyObject):
    """The name of the function that the model must call."""

    name: str


class NamedToolChoice(BodyObject):
    """A tool choice of the one tool that the model must call."""

    type: Literal["function"]
    function: NamedFunction


def _kind_of_choice(value: Any) -> str:
    if not isinstance(value, dict):
        return "str"
    return "dict[allowed]" if value.get("type") == "allowed_tools" else "dict[]"


ToolChoiceOf = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("str")]
    | Annotated[Allowed, Tag("dict[allowed]")]
    | Annotated[Named, Tag("dict[]")],
    Discriminator(_kind_of_choice),
]
ToolChoice = ToolChoiceOf[AllowedToolChoice, NamedToolChoice]


MAX_MESSAGES = 10_000
MAX_PARTS = 10_000  # per message
# A message with one of these fields may have no content, like this gateway's own answers.
INSTEAD_OF_TEXT = ("tool_calls", "reasoning", "reasoning_content")


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


Parts = Annotated[
    list[TextPart],
    Field(fail_fast=True, max_length=MAX_PARTS),
    text_or_list(lambda text: {"type": "text", "text": text}),
]


def join_text(parts: Sequence[Any]) -> str:
    """Return parts as one text. As in vLLM, line ends join them."""
    return "\n".join(part.text for part in parts)


class FunctionCallParam(Strict):
    """A function and its arguments, as JSON."""

    name: str
    arguments: str = "{}"


class ToolCallParam(Strict):
    """A call that an assistant made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCallParam

    @property
    def for_template(self) -> dict[str, Any]:
        """The call as templates need it: the arguments are an object instead of JSON text.

        Raises ApiError if the arguments contain invalid text or too many levels.
        """
        plain = self.model_dump(exclude_none=True)
        try:
            arguments = json.loads(self.function.arguments.strip() or "{}")
            fault = find_unreadable(arguments)
        except RecursionError:
            fault = TOO_DEEP
        except ValueError:  # not JSON
            return plain
        if fault is not None:
            message, code = fault
            raise bad_request(message.format(path="messages"), param="messages", code=code)
        plain["function"]["arguments"] = {} if arguments is None else arguments
        return plain


ToolCallParams = Annotated[list[ToolCallParam], Field(fail_fast=True, max_length=MAX_TOOLS)]


class Message(Strict):
    """A message of a chat. Other fields are ignored, because templates don't use them.

    reasoning_content: the name that templates use; vLLM's clients send `reasoning`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Parts
    name: str | None = None
    reasoning_content: Annotated[
        str | None, Field(validation_alias=AliasChoices("reasoning_content", "reasoning"))
    ] = None
    tool_calls: ToolCallParams | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_text_or_calls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in ("function_call", "audio"):
            if data.get(name):
                raise PydanticCustomError("unsupported", f"{name} isn't supported; send text")
        if data.get("content") is None and any(map(data.get, INSTEAD_OF_TEXT)):
            return data | {"content": ""}
        return data

    @property
    def text(self) -> str:
        return join_text(self.content)

    @property
    def for_template(self) -> dict[str, Any]:
        plain = self.model_dump(exclude={"content", "tool_calls"}, exclude_none=True)
        if self.tool_calls:
            plain["tool_calls"] = [call.for_template for call in self.tool_calls]
        return plain | {"content": self.text}


def _sort_by_calls(messages: list[Message]) -> list[Message]:
    """Sort consecutive outputs of tools by their calls, because most templates don't show ids."""
    keys: list[tuple[int, int]] = []
    turn, place = 0, dict[str | None, int]()
    for number, message in enumerate(messages):
        if message.role == "tool":
            keys.append((turn, place.get(message.tool_call_id, len(place) + 1)))
        else:
            calls = [call.id for call in message.tool_calls or ()]
            turn, place = number, {call: n for n, call in enumerate(calls, start=1)}
            keys.append((turn, 0))
    return [messages[number] for number in sorted(range(len(keys)), key=keys.__getitem__)]


Messages = Annotated[list[Message], Field(max_length=MAX_MESSAGES), AfterValidator(_sort_by_calls)]
