"""Find tool calls in an answer's text as it arrives.

The result depends only on the text, not on its division into chunks. Text is held back while it may
be part of a call, so text that has been returned is never taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

from pydantic_core import from_json

from tandem.gateway.tools.formats import ToolCallFormat

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


class ObjectEnd:
    """Finds the end of a JSON object in a growing text.

    at: number of characters read. depth: number of objects and lists that are open at the start.
    """

    def __init__(self, depth: int = 0) -> None:
        self.at = 0
        self._depth = depth
        self._in_string = False

    def found(self, text: str) -> bool:
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
    """

    def __init__(self, known: ToolCallFormat, names: Collection[str]) -> None:
        self._format = known
        self._names = frozenset(names)
        # A state is a method that consumes text. It returns whether the next state may consume
        # more.
        self._outside = self._in_text if known.begin else self._in_last_text
        self._state: Callable[[], bool] = self._in_text if known.begin else self._at_start
        self._text = ""  # not consumed yet
        self._held = ""  # consumed; becomes content unless a call follows
        self._object = ObjectEnd()
        self._num_calls = 0
        self._new: list[Piece] = []

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    @property
    def in_call(self) -> bool:
        """Whether a call has begun whose arguments aren't complete."""
        if self._state == self._before_arguments:
            return bool(self._format.begin or self._text.strip(SPACE))
        return self._state == self._in_arguments

    def feed(self, text: str) -> list[Piece]:
        """Return the next pieces of the answer, in order."""
        self._new = []
        self._text += text
        while self._state():
            pass
        return self._new

    def end(self) -> str:
        """Return the text that was held back until the end of the answer."""
        left = self._held + self._text
        if self._state in (self._in_arguments, self._after_arguments, self._after_call):
            left = ""
        return "" if self.has_calls and not left.strip(SPACE) else left

    def _take(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        return taken

    def _hold_space(self) -> None:
        self._held += self._take(len(self._text) - len(self._text.lstrip(SPACE)))

    def _in_text(self) -> bool:
        """Consume the text before a call, except white space directly before the call."""
        begin = self._format.begin
        text, found, _ = self._text.partition(begin)
        if not found:
            part = next(n for n in reversed(range(len(begin))) if text.endswith(begin[:n]))
            text = text[: len(text) - part]
        self._take(len(text))
        if content := text.rstrip(SPACE):
            self._new.append(self._held + content)
            self._held = ""
        self._held += text[len(content) :]
        if found:
            self._begin_call(len(begin))
        return bool(found)

    def _in_last_text(self) -> bool:
        self._new.append(self._held + self._take(len(self._text)))
        self._held = ""
        return False

    def _at_start(self) -> bool:
        """Decide whether the answer starts with a call."""
        self._hold_space()
        begins = "".join(letter for letter in self._text if letter not in SPACE)
        if begins.startswith(self._format.openings):
            self._begin_call(self._text.index("{"))
        elif any(opening.startswith(begins) for opening in self._format.openings):
            return False
        else:
            self._state = self._outside
        return True

    def _begin_call(self, length: int) -> None:
        """Expect a call's object after `length` characters."""
        self._held += self._take(length)
        self._object = ObjectEnd()
        self._state = self._before_arguments

    def _before_arguments(self) -> bool:
        """Hold back a call until its arguments begin or it is complete."""
        self._hold_space()
        head = HEAD.match(self._text)
        if head is None and self._text[:1] in ("", "{") and not self._object.found(self._text):
            return False
        try:
            if head is not None:
                self._add_call(from_json(head[1]))
                self._take(head.end())
                self._object, self._state = ObjectEnd(), self._in_arguments
            else:
                self._add_whole_call(self._text[: self._object.at])
                self._take(self._object.at)
                self._state = self._after_call
        except ValueError:  # not a call
            self._new.append(self._held)
            self._state = self._outside
        self._held = ""
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

    def _in_arguments(self) -> bool:
        over = self._object.found(self._text)
        if new := self._take(self._object.at):
            if not self._new:  # the call began in an earlier text
                self._new.append(CallDelta(self._num_calls - 1))
            call = self._new[-1]
            assert isinstance(call, CallDelta)
            call.arguments += new
        self._object.at = 0
        if over:
            self._object, self._state = ObjectEnd(depth=1), self._after_arguments
        return over

    def _after_arguments(self) -> bool:
        """Skip other keys of the call, such as an id."""
        self._hold_space()
        if not self._text or (self._text[0] == "," and not self._object.found(self._text)):
            return False
        self._take(self._object.at)
        self._state = self._after_call
        return True

    def _after_call(self) -> bool:
        """Wait for the end mark or the next call."""
        self._hold_space()
        known, text = self._format, self._text
        if text.startswith("}"):  # the end of the call, or an extra brace
            self._take(1)
            self._held = ""
        elif known.between and text.startswith(known.between):
            self._begin_call(len(known.between))
        elif known.end and text.startswith(known.end):
            self._take(len(known.end))
            self._held, self._state = "", self._outside
        elif not known.end and text.startswith("{"):
            self._begin_call(0)
        elif known.end.startswith(text):
            return False
        else:
            self._state = self._outside
        return True
