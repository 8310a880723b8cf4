r"""Converts GBNF, the grammar format of llama.cpp, to the library's dialect of Lark.

A terminal of the library takes the longest text that it can, so `/[a-z]+/ "a"` matches nothing.
GBNF has no terminals. So a grammar without recursion becomes a single terminal, and in any other
grammar each terminal is one character.

Source of the syntax: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final, NoReturn

from tandem.guides.errors import GuideError, shorten

ROOT: Final = "root"
BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
SYMBOL = re.compile(
    r"""(?P<newline>[\r\n]) | (?P<defined>::=) | (?P<or>\|) | (?P<open>\() | (?P<close>\))
    | (?P<name>[A-Za-z0-9_-]+) | (?P<any>\.) | (?P<token>!?<[^>]*>)
    | (?P<literal>"(?:\\.|[^"\\])*") | (?P<set>\[\^?(?:\\.|[^]\\])*\])
    | (?P<times>[*+?]|\{\s*[0-9]+\s*(?:,\s*[0-9]*\s*)?\}) | (?P<end>\Z)""",
    re.DOTALL | re.VERBOSE,
)
CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([][trn\\\"-])|([^\\])",
    re.DOTALL,
)
CONTROLS: Final = {"t": "\t", "r": "\r", "n": "\n"}
EMPTY: Final = '""'
TIMES: Final = {"*": "{0,}", "+": "{1,}", "?": "{0,1}"}
SURROGATES, LAST_CODE = range(0xD800, 0xE000), 0x10FFFF


def convert_gbnf(text: str, special: Mapping[str, int] = {}) -> str:
    """Return the Lark grammar for a GBNF grammar; raise GuideError if it is invalid.

    special: ids of the tokens that aren't text, by name. A grammar can name only these tokens.
    """
    return _Converter(text, special).convert()


class _Converter:
    """Converts one grammar. Its rules are named r0, r1 and so on, in the order of their mention."""

    def __init__(self, text: str, special: Mapping[str, int]) -> None:
        self._text = text
        self._special = special
        self._numbers: dict[str, int] = {}  # rule -> number
        self._bodies: dict[str, str] = {}  # rule -> body in Lark
        self._mentions: dict[str, dict[str, int]] = {}  # rule -> names in its body, with offsets
        self._has_tokens = False
        self._move_to(0)

    def convert(self) -> str:
        self._skip_newlines()
        while self._kind != "end":
            self._read_rule()
        used = self._find_used()
        letter, rules = "r", [f"r{self._numbers[name]}: {self._bodies[name]}" for name in used]
        if not self._has_tokens and not self._is_recursive(used):
            # Names in upper case are terminals. Adjacent characters become one string.
            letter, rules = "R", [rule.replace("r", "R").replace("/ /", "") for rule in rules]
        return "\n".join([f"start: {letter}{self._numbers[ROOT]}", *rules])

    def _read_rule(self) -> None:
        """Convert a rule. It replaces an earlier rule of the same name, as in llama.cpp."""
        name = self._take("name", "the name of a rule")
        self._take("defined", "'::='")
        self._skip_newlines()
        self._number(name)
        self._mentions[name] = {}
        self._bodies[name] = self._choice(self._mentions[name], nested=False)
        if self._kind != "end":
            self._take("newline", "the end of the line")
        self._skip_newlines()

    def _choice(self, mentions: dict[str, int], *, nested: bool) -> str:
        options = [self._sequence(mentions, nested=nested)]
        while self._kind == "or":
            self._move_on()
            self._skip_newlines()
            options.append(self._sequence(mentions, nested=nested))
        return " | ".join(options)

    def _sequence(self, mentions: dict[str, int], *, nested: bool) -> str:
        items: list[str] = []
        while True:
            if self._kind == "newline" and nested:
                pass
            elif self._kind == "times" and items:
                items[-1] = self._repeat(items[-1])
            elif self._kind == "open":
                self._move_on()
                self._skip_newlines()
                items.append(f"({self._choice(mentions, nested=True)})")
                if self._kind != "close":
                    self._fail("expected ')'")
            elif self._kind == "name":
                mentions.setdefault(self._symbol[0], self._symbol.start())
                items.append(f"r{self._number(self._symbol[0])}")
            elif self._kind in ITEMS:
                items.append(ITEMS[self._kind](self))
            else:
                return " ".join(items) or EMPTY
            self._move_on()

    def _any(self) -> str:
        return "/(?s:.)/"

    def _literal(self) -> str:
        start, end = self._symbol.span()
        texts = [f"/{_escape(code)}/" for _, code in self._characters(start + 1, end - 1)]
        return f"({' '.join(texts)})" if texts else EMPTY

    def _set(self) -> str:
        start, end = self._symbol.span()
        negated = self._text[start + 1] == "^"
        read = [*self._characters(start + 1 + negated, end - 1)]
        ranges, at = [], 0
        while at < len(read):
            low = high = read[at][1]
            if at + 2 < len(read) and read[at + 1][0] == "-":
                at += 2
                high = read[at][1]
            if low > high:
                self._fail(f"'{self._symbol[0]}' has a range whose end is before its start")
            ranges.append(f"{_escape(low)}-{_escape(high)}")
            at += 1
        if not ranges:
            self._fail("empty brackets match nothing")
        return f"/[{'^' * negated}{''.join(ranges)}]/"

    def _characters(self, at: int, end: int) -> Iterator[tuple[str, int]]:
        """Yield the spelling and the code point of each character between two offsets."""
        while at < end:
            found = CHARACTER.match(self._text, at, end)
            if found is None:
                self._fail("unknown escape", at)
            x, u, long, escaped, plain = found.groups()
            digits = x or u or long
            code = int(digits, 16) if digits else ord(CONTROLS.get(escaped, escaped) or plain)
            if code in SURROGATES or code > LAST_CODE:
                self._fail(f"{found[0]!r} isn't a Unicode character", at)
            yield found[0], code
            at = found.end()

    def _repeat(self, item: str) -> str:
        text = TIMES.get(self._symbol[0]) or re.sub(r"\s", "", self._symbol[0])
        least, comma, most = text[1:-1].partition(",")
        if not comma:
            most = least
        if most and int(most) < int(least):
            self._fail(f"'{text}' has a maximum below its minimum")
        return (
            f"({item}){{{int(least)},{most and int(most)}}}"
            if most.strip("0") or not most
            else EMPTY
        )

    def _token(self) -> str:
        self._has_tokens = True
        name = self._symbol[0]
        if name.startswith("!"):  # the library's negation would include the end of the sequence
            self._fail(f"'{shorten(name)}' isn't supported; '.' matches all text without tokens")
        number = int(name[2:-2]) if re.fullmatch(r"<\[[0-9]+\]>", name) else self._special.get(name)
        if number not in self._special.values():
            self._fail(f"'{shorten(name)}' isn't a special token; write its text instead")
        return f"<[{number}]>"

    def _find_used(self) -> list[str]:
        """Return the rules that the root needs. Raise GuideError if a rule is missing."""
        if ROOT not in self._bodies:
            self._fail(f"there is no rule '{ROOT}'")
        for mentions in self._mentions.values():
            for name, offset in mentions.items():
                if name not in self._bodies:
                    self._fail(f"there is no rule '{shorten(name)}'", offset)
        used = [ROOT]
        for rule in used:
            used += self._mentions[rule].keys() - set(used)
        return used

    def _is_recursive(self, used: list[str]) -> bool:
        try:
            TopologicalSorter({name: self._mentions[name] for name in used}).prepare()
        except CycleError:
            return True
        return False

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _take(self, kind: str, wanted: str) -> str:
        if self._kind != kind:
            self._fail(f"expected {wanted}")
        text = self._symbol[0]
        self._move_on()
        return text

    def _skip_newlines(self) -> None:
        while self._kind == "newline":
            self._move_on()

    def _move_on(self) -> None:
        self._move_to(self._symbol.end())

    def _move_to(self, at: int) -> None:
        """Read the symbol at an offset, after blanks and comments."""
        blanks = BLANK.match(self._text, at)
        assert blanks is not None
        found = SYMBOL.match(self._text, blanks.end())
        if found is None:
            self._fail(f"unexpected or unclosed {self._text[blanks.end()]!r}", blanks.end())
        self._symbol, self._kind = found, found.lastgroup

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        before = self._text[: self._symbol.start() if at is None else at]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise GuideError(f"at {line}({column}): {reason}")


ITEMS: Final = {
    "any": _Converter._any,
    "literal": _Converter._literal,
    "set": _Converter._set,
    "token": _Converter._token,
}


def _escape(code: int) -> str:
    return rf"\x{{{code:x}}}"
