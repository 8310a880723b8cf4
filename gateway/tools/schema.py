"""The fields of a request that offer tools."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from tandem.gateway.body import BodyObject
from tandem.gateway.values import UpToFirstFault

MOST_TOOLS = 128


class Function(BaseModel):
    """A function that a model may call.

    parameters: JSON schema of the arguments; None: there are none. strict: they must fit it.
    """

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool that a model may call."""

    type: Literal["function"]
    function: Function

    @property
    def plain(self) -> dict[str, Any]:
        """The tool as chat templates see it."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})


Tools = Annotated[list[Tool], UpToFirstFault(MOST_TOOLS)]


class FunctionNamed(BodyObject):
    """The name of a function."""

    place: ClassVar = "tool_choice.function"
    name: str


class ToolNamed(BodyObject):
    """The one tool that has to be called."""

    place: ClassVar = "tool_choice"
    type: Literal["function"]
    function: FunctionNamed


def _word_or_tool(value: Any) -> str:
    return "dict[]" if isinstance(value, dict) else "str"


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("str")]
    | Annotated[ToolNamed, Tag("dict[]")],
    Discriminator(_word_or_tool),
]
