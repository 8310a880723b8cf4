"""Tool calls in an answer's text, as the families of chat models write them.

What a parser finds is a function of the text alone: it reads a character at a time, so the chunks
in which a text arrives change nothing. It takes nothing back that it told: it holds text back for
as long as that may turn out to be a call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

SPACE = " \t\r\n"


class ToolCallFormat(NamedTuple):
    """How a family of models writes calls: as JSON objects with a name and arguments.

    mark: what its chat templates have, and others have not; words: what they have instead.
    arguments: the key of a call's arguments. begin, end: around each call; with neither, an answer
    that has calls begins with one of ``openings``, in which white space does not count, and
    ``between`` stands between calls. A model's special tokens are no part of the text, so an
    opening with one has a twin without. Calls that a grammar asks for have a line end inside
    ``begin`` and ``end``. head: the grammar's rule before all of them. joint: the text between two
    of them.
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

    def is_of(self, template: str) -> bool:
        """Whether the models of a chat template write calls so."""
        return self.mark in template or bool(self.words and self.words in template)


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
    """Return how the models of a chat template write calls; None where it is not known."""
    return next((known for known in FORMATS if known.is_of(template)), None)


@dataclass
class CallDelta:
    """What is new of a call. name: told once, first. arguments: JSON, as the model wrote it."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass
class Parsed:
    """What is new of an answer: text, and calls in the order in which they began."""

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class NotACallError(ValueError):
    """What may have been a call is not one."""


class CallObject:
    """The JSON object of one call, while it is written.

    name: once it is known. has_arguments: whether they have begun. over: whether it is complete.
    Only the object's own level is judged: what is in the arguments is the model's.
    """

    def __init__(self, arguments: str) -> None:
        self.name: str | None = None
        self.has_arguments = self.over = False
        self._arguments_key = arguments
        self._arguments: list[str] = []  # that nobody has taken
        self._read: Callable[[str], None] = self._before_object
        self._key: str | None = None
        self._value: list[str] = []  # of a string, number and so on; not of the arguments' object
        self._depth = 0
        self._in_string = self._escaped = False

    @property
    def has_begun(self) -> bool:
        """Whether more than white space has been read."""
        return self._read != self._before_object

    def read(self, letter: str) -> None:
        """Take the next character; raise NotACallError where no call goes on with it."""
        self._read(letter)

    def take_arguments(self) -> str:
        """Return what is new of the arguments."""
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    def _before_object(self, letter: str) -> None:
        if letter == "{":
            self._read = self._before_key
        elif letter not in SPACE:
            raise NotACallError

    def _before_key(self, letter: str) -> None:
        if letter == '"':
            self._value, self._read = [letter], self._inside_key
        elif letter == "}" and self._key is None:
            self._close()
        elif letter not in SPACE:
            raise NotACallError

    def _inside_key(self, letter: str) -> None:
        self._value.append(letter)
        if self._ends_string(letter):
            self._key, self._read = _text("".join(self._value)), self._before_colon

    def _before_colon(self, letter: str) -> None:
        if letter == ":":
            self._read = self._before_value
        elif letter not in SPACE:
            raise NotACallError

    def _before_value(self, letter: str) -> None:
        if letter in SPACE:
            return
        if letter in ",:}]" or (self._key == "name" and letter != '"'):
            raise NotACallError
        self._value, self._depth = [], 0
        self._read = self._inside_value
        if self._key == self._arguments_key and letter == "{" and not self.has_arguments:
            self.has_arguments, self._value = True, self._arguments
        self._inside_value(letter)

    def _inside_value(self, letter: str) -> None:
        if self._in_string:
            self._value.append(letter)
            if self._ends_string(letter) and self._depth == 0:
                self._end_value()
        elif self._depth == 0 and letter in ",}":  # behind a number or a word
            self._end_value()
            self._after_value(letter)
        elif letter == "<":  # nowhere in JSON: the end mark of a call whose braces are missing
            raise NotACallError
        else:
            self._value.append(letter)
            self._in_string = letter == '"'
            self._depth += (letter in "{[") - (letter in "}]")
            if self._depth == 0 and letter in "}]":
                self._end_value()

    def _end_value(self) -> None:
        value = "".join(self._value)
        if self._key == "name":
            self.name = _text(value)
        elif self._key == self._arguments_key and not self.has_arguments:
            self._arguments.append(_text(value) if value.startswith('"') else _json(value))
            self.has_arguments = True
        self._read = self._after_value

    def _after_value(self, letter: str) -> None:
        if letter == ",":
            self._read = self._before_key
        elif letter == "}":
            self._close()
        elif letter not in SPACE:
            raise NotACallError

    def _close(self) -> None:
        if self.name is None:
            raise NotACallError
        self.over = True

    def _ends_string(self, letter: str) -> bool:
        """Whether a string ends with its next character."""
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            self._in_string = False
            return True
        return False


class ToolCallParser:
    """Tells text and calls apart while an answer is written.

    names: of the tools that may be called. Where an answer may begin with a call that nothing
    marks, only theirs are calls. White space beside a call is no text of the answer.
    """

    def __init__(self, known: ToolCallFormat, names: Collection[str]) -> None:
        self._format = known
        self._names = frozenset(names)
        self._read: Callable[[str], None] = self._in_text if known.begin else self._at_start
        self._spaces = self._part = ""  # held back: white space, and what may begin or end a call
        self._held: list[str] = []  # a call that has not been told
        self._call = CallObject(known.arguments)
        self._told = False  # the call under way
        self._number = 0  # of calls told
        self._new = Parsed()

    @property
    def has_calls(self) -> bool:
        """Whether any call has been told."""
        return self._number > 0

    @property
    def in_call(self) -> bool:
        """Whether a call has begun that has not come to its end, told or not."""
        begun = self._told or self._format.begin or self._call.has_begun
        return bool(begun) and self._read == self._in_call

    def feed(self, text: str) -> Parsed:
        """Take more of the text; return what it makes known."""
        self._new = Parsed()
        for at, letter in enumerate(text):
            if self._read == self._as_text:
                self._new.content += text[at:]
                break
            self._read(letter)
        self._take_arguments()
        return self._new

    def end(self) -> Parsed:
        """Return what was held back: nothing follows."""
        self._new = Parsed()
        if self._read == self._in_text and (self._part or not self.has_calls):
            self._new.content = self._spaces + self._part
        elif self._read != self._after_call:
            self._new.content = "".join(self._held)
        return self._new

    def _as_text(self, letter: str) -> None:
        self._new.content += letter

    def _in_text(self, letter: str) -> None:
        """Wait for the next call to begin."""
        if letter in SPACE:
            if self._part:
                self._new.content += self._spaces + self._part
                self._spaces = self._part = ""
            self._spaces += letter
            return
        part = self._part + letter
        start = next(at for at in range(len(part) + 1) if self._format.begin.startswith(part[at:]))
        if start:
            self._new.content += self._spaces + part[:start]
            self._spaces = ""
        self._part = part[start:]
        if self._part == self._format.begin:
            self._begin(self._spaces + self._part)
            self._spaces = self._part = ""

    def _at_start(self, letter: str) -> None:
        """Find out whether the answer begins with a call."""
        self._held.append(letter)
        if letter in SPACE:
            return
        self._part += letter
        if self._part in self._format.openings:
            self._begin("".join(self._held))
            self._call.read(letter)
        elif not any(opening.startswith(self._part) for opening in self._format.openings):
            self._go_on_with_text()

    def _begin(self, held: str) -> None:
        self._call, self._told = CallObject(self._format.arguments), False
        self._held, self._part = [held], ""
        self._read = self._in_call

    def _in_call(self, letter: str) -> None:
        if not self._told:
            self._held.append(letter)
        try:
            self._call.read(letter)
            self._tell()
        except NotACallError:
            self._take_arguments()
            if self._told:  # nothing is taken back: the model broke it off, and may end it now
                self._read, self._part = self._after_call, ""
                self._after_call(letter)
                return
            self._new.content += "".join(self._held[:-1])
            self._held = [letter]
            self._go_on_with_text()
            return
        if self._call.over:
            self._take_arguments()
            self._read, self._part = self._after_call, ""

    def _tell(self) -> None:
        """Tell a call as soon as it is one for certain."""
        call, marked = self._call, bool(self._format.begin)
        if self._told or call.name is None or not (call.has_arguments or call.over):
            return
        if not marked and (call.name not in self._names or not call.has_arguments):
            raise NotACallError
        self._new.calls.append(CallDelta(self._number, call.name))
        if not call.has_arguments:
            self._new.calls[-1].arguments = "{}"
        self._told, self._held = True, []
        self._number += 1

    def _take_arguments(self) -> None:
        """Tell what is new of the arguments of a call that was told."""
        new = self._call.take_arguments() if self._told else ""
        if not new:
            return
        if not self._new.calls or self._new.calls[-1].index != self._number - 1:
            self._new.calls.append(CallDelta(self._number - 1))
        self._new.calls[-1].arguments += new

    def _after_call(self, letter: str) -> None:
        """Wait for the end of a call, or of all, or for the next one."""
        self._held.append(letter)
        if letter in SPACE:
            return
        self._part += letter
        if self._part == self._format.between:
            self._begin("".join(self._held))
        elif self._part == self._format.end:
            self._held, self._part = [], ""
            self._read = self._in_text if self._format.begin else self._as_text
        elif not self._format.end and letter == "{":
            self._begin("".join(self._held))
            self._call.read(letter)
        elif not self._format.end.startswith(self._part):
            self._go_on_with_text()

    def _go_on_with_text(self) -> None:
        """Read as text what was held back, and what follows."""
        held, self._held, self._part = "".join(self._held), [], ""
        self._read = self._in_text if self._format.begin else self._as_text
        for letter in held:
            self._read(letter)


def _text(literal: str) -> str:
    """Read a JSON string, in which half of a surrogate pair is no character."""
    try:
        text = str(json.loads(literal))
        text.encode()
    except ValueError as error:
        raise NotACallError from error
    return text


def _json(literal: str) -> str:
    """Return a value that is JSON, as it stands."""
    try:
        json.loads(literal)
    except ValueError as error:
        raise NotACallError from error
    return literal
