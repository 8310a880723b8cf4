"""The formats in which families of chat models write tool calls."""

from __future__ import annotations

from typing import NamedTuple


class ToolCallFormat(NamedTuple):
    """A format of tool calls: JSON objects with a name and arguments.

    mark: text by which a chat template of the format is recognized; words: the same for templates
    without the mark. arguments: key of the arguments. begin, end: text around each call. In formats
    without ``begin``, an answer with calls begins with one of ``openings`` (white space in it
    doesn't matter), and ``between`` separates calls. Special tokens may be missing in the text, so
    an opening with one has a twin without it. head: the grammar's rule before all calls. joint: the
    grammar's text between calls. In grammars, a line end follows ``begin`` and precedes ``end``.
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
        """Whether a call may look like any other JSON object at its start."""
        return "{" in self.openings


FORMATS = (
    # Nous Hermes 2 Pro, Qwen 2.5 and 3
    ToolCallFormat("hermes", "<tool_call>", begin="<tool_call>", end="</tool_call>", joint="\n"),
    # Mistral 7B Instruct v0.3 and later: a list
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
        # Templates of the text models of Llama 3.2 have these words instead of the mark.
        words='"parameters": dictionary of argument name and its value',
    ),
)


def format_of(template: str) -> ToolCallFormat | None:
    """Return the format that a chat template uses; None if it isn't known."""
    for known in FORMATS:
        if known.mark in template or (known.words and known.words in template):
            return known
    return None
