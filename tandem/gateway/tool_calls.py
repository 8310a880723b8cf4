"""Find tool calls in an answer's text as it arrives, in the formats of the families of chat models.

The result depends only on the text, not on its division into chunks. Text is held back while it may
be part of a call, so text that has been returned is never taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias, TypeVar

from pydantic_core import from_json


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


SPACE = " \t\r\n"
S = f"[{SPACE}]*"
# Each format uses one of these keys, but models also write the other one.
ARGUMENTS = ("arguments", "parameters")
# The usual form of a call up to its arguments. The arguments can then be returned as they grow. A
# call of another form is returned when it is complete.
HEAD = re.compile(
    rf'\{{{S}"name"{S}:{S}("(?:[^"\\]|\\.)*"){S},{S}"(?:{"|".join(ARGUMENTS)})"{S}:{S}(?=\{{)',
    re.DOTALL,
)
SIGN = re.compile(r'\\.|["{}\[\]<]', re.DOTALL)


@dataclass
class CallDelta:
    """The next part of a call. name: only in the first part. arguments: part of their JSON."""

    index: int
    name: str | None = None
    arguments: str = ""


Piece: TypeAlias = str | CallDelta  # text, or part of a call
Result = TypeVar("Result")
More: TypeAlias = Generator[None, None, Result]


def partition(text: str, mark: str) -> tuple[str, str, str]:
    """Split a growing text at a mark, as `str.partition` does.

    If the mark isn't complete, the last part is the end of the text that may be its start.
    """
    before, found, after = text.partition(mark)
    if not found:
        length = next(n for n in reversed(range(len(mark))) if text.endswith(mark[:n]))
        before, after = text[: len(text) - length], text[len(text) - length :]
    return before, found, after


class ObjectEnd:
    """Finds the end of a JSON object in a growing text.

    at: number of characters read. depth: number of objects and lists that are open at the start.
    """

    def __init__(self, depth: int = 0) -> None:
        self.at = 0
        self._depth = depth
        self._in_string = False

    def find(self, text: str) -> bool:
        """Continue reading. Return whether the object ends, or is broken off, at `at`."""
        for sign in SIGN.finditer(text, self.at):
            self.at = sign.end()
            if sign[0] == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                continue
            elif sign[0] == "<":  # not JSON, so this is the end mark of the call
                self.at = sign.start()
                return True
            elif sign[0] in "{[":
                self._depth += 1
            elif sign[0] in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return True
        # A backslash at the end is read later, together with the character that it escapes.
        self.at = len(text) - text.endswith("\\", self.at)
        return False


class ToolCallParser:
    """Separates text from calls.

    names: names of the tools that the model may call. In formats without a mark around each call,
    an object is a call only if it has one of these names.
    one_call: whether to keep only the first call.
    only_calls: whether the answer must consist of calls. Other text is then markup of an incomplete
        call.
    in_call: whether a call has begun and its arguments are incomplete.

    The methods that return `More` consume the text. They yield whenever they need more of it.
    """

    def __init__(
        self,
        known: ToolCallFormat,
        names: Collection[str],
        *,
        one_call: bool = False,
        only_calls: bool = False,
    ) -> None:
        self.in_call = False
        self._one_call = one_call
        self._only_calls = only_calls
        self._format = known
        self._names = frozenset(names)
        self._text = ""  # not consumed yet
        self._held = ""  # consumed; becomes content unless a call follows
        self._is_markup = False  # whether text that isn't consumed yet belongs to a call
        self._num_calls = 0
        self._new: list[Piece] = []
        self._parsing = self._parse_marked() if known.begin else self._parse_unmarked()

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def feed(self, text: str, *, last: bool = False) -> list[Piece]:
        """Return the next pieces in order. last: whether the answer ends, so no text is held."""
        self._new = []
        self._text += text
        next(self._parsing)
        held = "" if self._is_markup else self._held + self._text
        if last and (held.strip(SPACE) or not self.has_calls):
            self._new.append(held)
        if self._only_calls:
            self._new = [piece for piece in self._new if isinstance(piece, CallDelta)]
        if self._one_call:
            self._new = [piece for piece in self._new if isinstance(piece, str) or not piece.index]
        return self._new

    def _parse_marked(self) -> More[NoReturn]:
        """Parse an answer in which a mark precedes each call."""
        while True:
            yield from self._text_before_call()
            if (yield from self._call()):
                yield from self._end_call()

    def _parse_unmarked(self) -> More[NoReturn]:
        """Parse an answer that consists of calls and text after them, or of text."""
        follows = yield from self._starts_with_call()
        while follows:
            follows = (yield from self._call()) and (yield from self._end_call())
        while True:
            self._new.append(self._held + self._take(len(self._text)))
            self._held = ""
            yield

    def _text_before_call(self) -> More[None]:
        """Consume the text before a call, and hold white space and the mark before the call."""
        self._is_markup, begin, found = False, self._format.begin, ""
        while not found:
            text, found, _ = partition(self._text, begin)
            self._take(len(text))
            if content := text.rstrip(SPACE):
                self._new.append(self._held + content)
                self._held = ""
            self._held += text[len(content) :]
            if not found:
                yield
        self._hold(len(begin))

    def _starts_with_call(self) -> More[bool]:
        """Return whether the answer starts with a call, and hold the text before its object."""
        openings = self._format.openings
        while True:
            self._hold_space()
            begins = "".join(letter for letter in self._text if letter not in SPACE)
            if begins.startswith(openings):
                self._hold(self._text.index("{"))
                return True
            if not any(opening.startswith(begins) for opening in openings):
                return False
            yield

    def _call(self) -> More[bool]:
        """Consume a call up to the end of its object. Return False if it isn't a call."""
        self._is_markup, whole = False, ObjectEnd()
        while True:
            self._hold_space()
            head = HEAD.match(self._text)
            if head or self._text[:1] not in ("", "{") or whole.find(self._text):
                break
            self.in_call = bool(self._format.begin or self._text)
            yield
        self.in_call = False
        try:
            if head is not None:
                self._add_call(from_json(head[1]))
            else:
                self._add_whole_call(self._text[: whole.at])
        except ValueError:
            self._new.append(self._held)
            self._held = ""
            return False
        self._is_markup = True
        self._drop(head.end() if head else whole.at)
        if head is not None:
            yield from self._arguments()
        return True

    def _add_whole_call(self, text: str) -> None:
        call = from_json(text)
        name = call.pop("name", None)
        given = [value for key, value in call.items() if key in ARGUMENTS]
        if self._format.begin and not call:
            given = [None]
        arguments = given[0] if given else False
        if isinstance(arguments, str):
            arguments = from_json(arguments) if arguments.strip() else None
        if arguments is None:
            arguments = {}
        if not (isinstance(name, str) and isinstance(arguments, dict)):
            raise ValueError  # noqa: TRY004 the model's text is wrong, not an argument's type
        self._add_call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))

    def _add_call(self, name: str, arguments: str = "") -> None:
        if not self._format.begin and name not in self._names:
            raise ValueError
        self._new.append(CallDelta(self._num_calls, name, arguments))
        self._num_calls += 1

    def _arguments(self) -> More[None]:
        """Consume the arguments, and other keys after them, such as an id."""
        arguments, self.in_call = ObjectEnd(), True
        while self.in_call:
            self.in_call = not arguments.find(self._text)
            if new := self._take(arguments.at):
                if not self._new:  # the call began in an earlier text
                    self._new.append(CallDelta(self._num_calls - 1))
                call = self._new[-1]
                assert isinstance(call, CallDelta)
                call.arguments += new
            arguments.at = 0
            if self.in_call:
                yield
        others = ObjectEnd(depth=1)
        self._hold_space()
        while not self._text or (self._text[0] == "," and not others.find(self._text)):
            yield
            self._hold_space()
        self._take(others.at)

    def _end_call(self) -> More[bool]:
        """Consume the end mark. Return whether another call follows directly."""
        between, end = self._format.between, self._format.end
        while True:
            self._hold_space()
            if self._text.startswith("}"):  # the end of the call, or an extra brace
                self._drop(1)
            elif between and self._text.startswith(between):
                self._hold(len(between))
                return True
            elif end and self._text.startswith(end):
                self._drop(len(end))
                return False
            elif not end and self._text.startswith("{"):
                return True
            elif not end.startswith(self._text):
                return False
            else:
                yield

    def _take(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        return taken

    def _drop(self, length: int) -> None:
        """Consume markup of a call, and forget the text that is held."""
        self._take(length)
        self._held = ""

    def _hold(self, length: int) -> None:
        self._held += self._take(length)

    def _hold_space(self) -> None:
        self._hold(len(self._text) - len(self._text.lstrip(SPACE)))
