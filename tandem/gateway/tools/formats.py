"""The formats in which families of chat models write tool calls."""

from __future__ import annotations

from typing import NamedTuple


class ToolCallFormat(NamedTuple):
    """A format of tool calls, which are JSON objects with a name and arguments.

    mark: text that identifies chat templates of this format.
    words: text that identifies templates without the mark.
    arguments: the key for the arguments.
    begin, end: text around each call. In grammars, a line end follows `begin` and precedes `end`.
    openings: in formats without `begin`, an answer with calls starts with one of these. White space
        in them doesn't matter. An opening with a special token has a twin without it, because
        special tokens may be missing from the text.
    between: separator of calls in formats without `begin`.
    head: the grammar's rule before all calls.
    joint: the grammar's text between calls.
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


FORMATS = (
    # Nous Hermes 2 Pro, Qwen 2.5 and 3
    ToolCallFormat("hermes", "<tool_call>", begin="<tool_call>", end="</tool_call>", joint="\n"),
    # Mistral 7B Instruct v0.3 and later: a list of calls
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
        # Templates of Llama 3.2's text models have these words instead of the mark.
        words='"parameters": dictionary of argument name and its value',
    ),
)


def detect_format(template: str) -> ToolCallFormat | None:
    """Return the format that a chat template uses, or None if it isn't known."""
    for known in FORMATS:
        if known.mark in template or (known.words and known.words in template):
            return known
    return None
