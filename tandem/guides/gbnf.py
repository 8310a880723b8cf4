r"""Converts GBNF, the grammar format of llama.cpp, to the library's dialect of Lark.

Parts without recursion become terminals, because a terminal is much faster than a rule.

Source of the syntax: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Final, NoReturn

from tandem.guides.errors import GuideError, shorten
from tandem.guides.terminals import (
    LAST_CODE,
    Characters,
    Choice,
    Grammar,
    Node,
    Reference,
    Repetition,
    Series,
    SpecialToken,
    Unit,
)

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
SURROGATES: Final = range(0xD800, 0xE000)


def convert_gbnf(text: str, special: Mapping[str, int] = {}) -> str:
    """Return the Lark grammar for a GBNF grammar; raise GuideError if it is invalid.

    special: ids of the tokens that aren't text, by name. A grammar can name only these tokens.
    """
    return _Converter(text, special).convert()


class _Converter:
    """Reads one grammar."""

    def __init__(self, text: str, special: Mapping[str, int]) -> None:
        self._text = text
        self._special = special
        self._bodies: dict[str, Node] = {}
        self._mentions: dict[str, dict[str, int]] = {}  # rule -> names in its body, with offsets
        self._move_to(0)

    def convert(self) -> str:
        self._skip_newlines()
        while self._kind != "end":
            self._read_rule()
        return _Writer({name: self._bodies[name] for name in self._find_used()}).write()

    def _read_rule(self) -> None:
        """Convert a rule. It replaces an earlier rule of the same name, as in llama.cpp."""
        name = self._take("name", "the name of a rule")
        self._take("defined", "'::='")
        self._skip_newlines()
        self._mentions[name] = {}
        self._bodies[name] = self._choice(self._mentions[name], nested=False)
        if self._kind != "end":
            self._take("newline", "the end of the line")
        self._skip_newlines()

    def _choice(self, mentions: dict[str, int], *, nested: bool) -> Node:
        options = [self._sequence(mentions, nested=nested)]
        while self._kind == "or":
            self._move_on()
            self._skip_newlines()
            options.append(self._sequence(mentions, nested=nested))
        return options[0] if len(options) == 1 else Choice(options)

    def _sequence(self, mentions: dict[str, int], *, nested: bool) -> Node:
        items: list[Node] = []
        while True:
            if self._kind == "newline" and nested:
                pass
            elif self._kind == "times" and items:
                items[-1] = self._repeat(items[-1])
            elif self._kind == "open":
                self._move_on()
                self._skip_newlines()
                items.append(self._choice(mentions, nested=True))
                if self._kind != "close":
                    self._fail("expected ')'")
            elif self._kind == "name":
                mentions.setdefault(self._symbol[0], self._symbol.start())
                items.append(Reference(self._symbol[0]))
            elif self._kind in ITEMS:
                items.append(ITEMS[self._kind](self))
            else:
                return items[0] if len(items) == 1 else Series(items)
            self._move_on()

    def _any(self) -> Node:
        return Characters([(0, LAST_CODE)])

    def _literal(self) -> Node:
        start, end = self._symbol.span()
        return Series([Characters([(c, c)]) for _, c in self._characters(start + 1, end - 1)])

    def _set(self) -> Node:
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
            ranges.append((low, high))
            at += 1
        if not ranges:
            self._fail("empty brackets match nothing")
        return Characters(ranges, negated)

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

    def _repeat(self, item: Node) -> Node:
        text = TIMES.get(self._symbol[0]) or re.sub(r"\s", "", self._symbol[0])
        least, comma, most = text[1:-1].partition(",")
        if not comma:
            most = least
        if most and int(most) < int(least):
            self._fail(f"'{text}' has a maximum below its minimum")
        if most and int(most) == 0:
            return Series([])
        return Repetition([item], int(least), int(most) if most else None)

    def _token(self) -> Node:
        name = self._symbol[0]
        if name.startswith("!"):  # the library's negation would include the end of the sequence
            self._fail(f"'{shorten(name)}' isn't supported; '.' matches all text without tokens")
        number = int(name[2:-2]) if re.fullmatch(r"<\[[0-9]+\]>", name) else self._special.get(name)
        if number is None or number not in self._special.values():
            self._fail(f"'{shorten(name)}' isn't a special token; write its text instead")
        return SpecialToken(number)

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


class _Writer:
    """Writes rules in Lark. Names of terminals are in upper case."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._numbers = {name: number for number, name in enumerate(rules)}
        self._grammar = Grammar(rules)
        self._root = Reference(ROOT)
        self._lines: list[str] = []
        self._units: list[Unit] = []

    def write(self) -> str:
        self._write_lines()
        while self._grammar.split_conflicting(self._units):
            self._write_lines()
        return "\n".join(self._lines)

    def _write_lines(self) -> None:
        self._units = []
        self._lines = []
        self._lines.append(f"start: {self._rule(self._root)}")
        for name, body in self._rules.items():
            if self._grammar.is_whole(body):
                self._lines.append(f"R{self._numbers[name]}: {self._terminal(body)}")
            else:
                self._lines.append(f"r{self._numbers[name]}: {self._rule(body)}")

    def _rule(self, node: Node) -> str:
        """Return a node in a rule. Its whole parts are terminals."""
        if self._grammar.is_whole(node):
            return self._unit((node,), node)
        if isinstance(node, Reference):
            return f"r{self._numbers[node.name]}"
        if not isinstance(node, Series):
            return _combine(node, self._rule)
        pieces = []
        for whole, row in groupby(node.parts, self._grammar.is_whole):
            parts = tuple(row)
            if whole and len(parts) > 1 and not self._grammar.is_split(node):
                pieces.append(self._unit(parts, node))
            else:
                pieces += map(self._rule, parts)
        return " ".join(pieces) or EMPTY

    def _unit(self, nodes: tuple[Node, ...], owner: Node) -> str:
        self._units.append(Unit(nodes, owner))
        text = " ".join(map(self._terminal, nodes))
        if isinstance(owner, Characters | Reference):
            return text
        self._lines.append(f"T{len(self._units)}: {_join(text)}")
        return f"T{len(self._units)}"

    def _terminal(self, node: Node) -> str:
        if isinstance(node, Reference):
            return f"R{self._numbers[node.name]}"
        return _join(_combine(node, self._terminal))


def _combine(node: Node, write: Callable[[Node], str]) -> str:
    """Return a node in Lark. write: returns one of its parts."""
    match node:
        case Characters():
            ranges = (rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in node.ranges)
            return f"/[{'^' * node.negated}{''.join(ranges)}]/"
        case Choice():
            return f"({' | '.join(map(write, node.parts))})"
        case Repetition(parts=[part]):
            most = "" if node.most is None else node.most
            return f"({write(part)}){{{node.least},{most}}}"
        case SpecialToken():
            return f"<[{node.number}]>"
        case Reference():
            raise TypeError(node)
        case _:
            return " ".join(map(write, node.parts)) or EMPTY


def _join(text: str) -> str:
    """Join adjacent regular expressions."""
    return text.replace("/ /", "")
