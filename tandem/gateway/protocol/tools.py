"""Tools, and which of them the model may call."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag

from tandem.gateway.protocol.body import BodyObject, Strict

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
