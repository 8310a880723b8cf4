"""The formats in which families of chat models write tool calls."""

from __future__ import annotations

from typing import NamedTuple


class ToolCallFormat(NamedTuple):
    """How a family of models writes calls: as JSON objects with a name and arguments.

    mark: text that only the family's chat templates have; words: the same for templates without the
    mark. arguments: the key of a call's arguments. begin, end: around each call. Without them, an
    answer with calls begins with one of ``openings``, in which white space does not count, and
    ``between`` separates calls. A model's special tokens may be missing in the text, so an
    opening with one has a twin without. head: the grammar's rule before all calls, joint: the text
    between two of them. Calls that a grammar asks for have a line end inside ``begin`` and ``end``.
    """

    name: str
    mark: str
    arguments: str = "arguments"
    begin: str = ""
    end: str = ""
    openings: tuple[str, ...] = ()
    between: str = ""
    head: str = ""
    joint: str = ""
    words: str = ""

    @property
    def begins_as_json(self) -> bool:
        """Whether a call may begin with what any JSON object begins with."""
        return "{" in self.openings


FORMATS = (
    # Nous Hermes 2 Pro, Qwen 2.5 and 3
    ToolCallFormat("hermes", "<tool_call>", begin="<tool_call>", end="</tool_call>", joint="\n"),
    # Mistral 7B Instruct v0.3 and those after it: a list
    ToolCallFormat(
        "mistral",
        "[TOOL_CALLS]",
        openings=("[TOOL_CALLS][{", "[{"),
        between=",",
        end="]",
        head='{mark} " "? "["',
        joint=", ",
    ),
    # Llama 3.1 to 3.3
    ToolCallFormat(
        "llama3",
        "<|python_tag|>",
        arguments="parameters",
        openings=("<|python_tag|>{", "{"),
        between=";",
        head="{mark}?",
        joint="; ",
        # Templates of the text models of Llama 3.2 have no mark, and ask for calls by these words.
        words='"parameters": dictionary of argument name and its value',
    ),
)


def format_of(template: str) -> ToolCallFormat | None:
    """Return the format that a chat template asks for; None if it is not known."""
    for known in FORMATS:
        if known.mark in template or (known.words and known.words in template):
            return known
    return None
