"""Finds the parts of a GBNF grammar that can be terminals of the library.

A terminal of the library takes the longest text that it can. GBNF has no terminals and tries every
length. Both accept the same texts if no terminal can go on where another one may end: let ``w`` be
a text of a terminal, and ``c`` a character that may follow it in the grammar. Then no text of any
terminal may start with ``wc``. If one does, its terminal is split into its parts. A single
character can always be a terminal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from operator import or_
from typing import Final, NamedTuple, TypeAlias

# Maximum number of compared pairs of characters. Beyond it, every character is a terminal.
MAX_STEPS: Final = 100_000
LAST_CODE: Final = 0x10FFFF


@dataclass(eq=False)
class Characters:
    """One character of a set. ranges: first and last code points."""

    ranges: list[tuple[int, int]]
    negated: bool = False


@dataclass(eq=False)
class Series:
    """Parts in a row."""

    parts: list[Node]


@dataclass(eq=False)
class Choice:
    """Alternatives."""

    parts: list[Node]


@dataclass(eq=False)
class Repetition:
    """Repetitions of one part. most: None if there is no maximum."""

    parts: list[Node]
    least: int
    most: int | None


@dataclass(eq=False)
class Reference:
    """The text of a rule."""

    name: str


@dataclass(eq=False)
class SpecialToken:
    """A token that isn't text."""

    number: int


Node: TypeAlias = Characters | Series | Choice | Repetition | Reference | SpecialToken


class Unit(NamedTuple):
    """Adjacent nodes that are one terminal. owner: the node to split if they can't be one."""

    nodes: tuple[Node, ...]
    owner: Node


class Start(NamedTuple):
    """How the texts of a node start. letters: one bit for each class of characters."""

    letters: int = 0
    nullable: bool = False


class TooComplex(Exception):
    """The terminals of a grammar can't be compared within the limit."""


class Fragment(NamedTuple):
    """Positions at which a part of a terminal may start and end."""

    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    nullable: bool = True


class Grammar:
    """The rules of a grammar, and the nodes of it that can be terminals.

    At first, this is each node without recursion and tokens.
    """

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._split: set[int] = set()  # ids of nodes that can't be terminals
        self._bounds = _bounds(rules.values())
        # For each class of characters: the classes with the same first byte
        heads = [(_first_byte(low), _first_byte(end - 1)) for low, end in pairwise(self._bounds)]
        self._near = [
            sum(1 << at for at, (low, high) in enumerate(heads) if low <= last and first <= high)
            for first, last in heads
        ]
        self._all = (1 << len(self._bounds) - 1) - 1
        self._starts: dict[str, Start] = dict.fromkeys(rules, Start())
        self._after: dict[int, int] = defaultdict(int)  # node's id -> letters that may follow it
        self._automata: dict[tuple[Node, ...], Fragment] = {}
        # For each position in an automaton: its letters, and the positions that may follow
        self._letters: list[int] = []
        self._following: list[set[int]] = []
        self._steps_left = MAX_STEPS
        self._find_starts()
        self._find_after()
        self._find_whole()

    def is_whole(self, node: Node) -> bool:
        """Return whether a node can be a terminal or a part of one."""
        if isinstance(node, Characters | SpecialToken):
            return isinstance(node, Characters)
        if id(node) in self._split:
            return False
        if isinstance(node, Reference):
            return node.name in self._whole
        return all(map(self.is_whole, node.parts))

    def is_split(self, node: Node) -> bool:
        """Return whether each part of a node must be a terminal of its own."""
        return id(node) in self._split

    def split_conflicting(self, units: Iterable[Unit]) -> bool:
        """Split the units that can't be terminals. Return whether there are any."""
        units = [unit for unit in units if unit.nodes]
        try:
            wrong = self._find_conflicting(units)
        except TooComplex:
            wrong = [unit for unit in units if not isinstance(unit.owner, Characters)]
        self._split.update(id(self._resolve(unit.owner)) for unit in wrong)
        self._find_whole()
        return bool(wrong)

    def _resolve(self, node: Node) -> Node:
        while isinstance(node, Reference):
            node = self._rules[node.name]
        return node

    def _find_conflicting(self, units: list[Unit]) -> list[Unit]:
        if not any(self._after[id(unit.nodes[-1])] for unit in units):  # there is one terminal
            return []
        terminals = {unit: self._automaton(tuple(map(self._resolve, unit.nodes))) for unit in units}
        after: dict[Fragment, int] = defaultdict(int)
        singles: dict[int, Fragment] = {}  # letters -> a terminal of one character
        for unit, terminal in terminals.items():
            short = terminal
            if len(terminal.first) == 1 and not self._goes_on(terminal):
                short = singles.setdefault(self._letters[min(terminal.first)], terminal)
            after[short] |= self._blur(self._after[id(unit.nodes[-1])])
        wrong = {
            long
            for long in set(terminals.values())
            if self._goes_on(long)
            and any(self._can_pass(short, long, letters) for short, letters in after.items())
        }
        return [unit for unit, terminal in terminals.items() if terminal in wrong]

    def _goes_on(self, terminal: Fragment) -> bool:
        """Return whether a terminal may have more than one character."""
        return any(self._following[position] for position in terminal.first)

    def _can_pass(self, short: Fragment, long: Fragment, after: int) -> bool:
        """Return whether ``long`` has a text that starts with one of ``short`` and a letter."""
        left = self._pairs(short.first, long.first)
        seen = set(left)
        for one, other in left:
            following = self._following[other]
            if one in short.last and any(self._letters[next_] & after for next_ in following):
                return True
            new = [p for p in self._pairs(self._following[one], following) if p not in seen]
            seen.update(new)
            left += new
        return False

    def _pairs(self, some: Collection[int], others: Collection[int]) -> list[tuple[int, int]]:
        """Return the pairs of positions that have a common letter."""
        self._count(len(some) * len(others))
        letters = self._letters
        return [pair for pair in product(some, others) if letters[pair[0]] & letters[pair[1]]]

    def _automaton(self, nodes: tuple[Node, ...]) -> Fragment:
        """Return the automaton of a terminal: a position per character (Glushkov's algorithm)."""
        if nodes not in self._automata:
            self._automata[nodes] = self._row(map(self._fragment, nodes))
        return self._automata[nodes]

    def _fragment(self, node: Node) -> Fragment:
        self._count(1)
        match node:
            case Characters():
                at = len(self._letters)
                self._letters.append(self._start(node).letters)
                self._following.append(set())
                return Fragment(frozenset([at]), frozenset([at]), nullable=False)
            case Reference():
                return self._fragment(self._rules[node.name])
            case Choice():
                options = [*map(self._fragment, node.parts)]
                return Fragment(
                    frozenset().union(*(option.first for option in options)),
                    frozenset().union(*(option.last for option in options)),
                    any(option.nullable for option in options),
                )
            case SpecialToken():  # it isn't part of a terminal
                raise TypeError(node)
            case Repetition(parts=[part]):
                count = max(node.least, 1) if node.most is None else node.most
                copies = [self._fragment(part) for _ in range(count)]
                if node.most is None:
                    self._link(copies[-1], copies[-1])
                row = Fragment()
                for at, copy in reversed([*enumerate(copies)]):
                    row = self._row([copy, row])
                    row = row._replace(nullable=row.nullable or at >= node.least)
                return row
            case _:
                return self._row(map(self._fragment, node.parts))

    def _row(self, fragments: Iterable[Fragment]) -> Fragment:
        row = Fragment()
        for one in fragments:
            self._link(row, one)
            row = Fragment(
                row.first | one.first if row.nullable else row.first,
                row.last | one.last if one.nullable else one.last,
                row.nullable and one.nullable,
            )
        return row

    def _link(self, one: Fragment, other: Fragment) -> None:
        self._count(len(one.last) * len(other.first))
        for position in one.last:
            self._following[position] |= other.first

    def _count(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise TooComplex

    def _blur(self, letters: int) -> int:
        """Add all letters whose first byte is the first byte of one of the letters.

        The library compares bytes: if U+00E8 may follow a terminal, the terminal must not go on
        with U+00E9, which starts with the same byte.
        """
        return reduce(or_, (near for at, near in enumerate(self._near) if letters >> at & 1), 0)

    def _start(self, node: Node) -> Start:
        match node:
            case Characters():
                letters = 0
                for low, high in node.ranges:
                    at, end = (bisect_left(self._bounds, code) for code in (low, high + 1))
                    letters |= (1 << end) - (1 << at)
                return Start(self._all ^ letters if node.negated else letters)
            case SpecialToken():
                return Start()
            case Reference():
                return self._starts[node.name]
        starts = [*map(self._start, node.parts)]
        if isinstance(node, Choice):
            needed, nullable = starts, any(start.nullable for start in starts)
        else:
            at = next((at for at, start in enumerate(starts) if not start.nullable), len(starts))
            needed, nullable = starts[: at + 1], at == len(starts)
        if isinstance(node, Repetition):
            nullable |= node.least == 0
        return Start(reduce(or_, (start.letters for start in needed), 0), nullable)

    def _find_starts(self) -> None:
        changed = True
        while changed:
            before = dict(self._starts)
            for rule, body in reversed([*self._rules.items()]):
                self._starts[rule] = self._start(body)
            changed = self._starts != before

    def _find_after(self) -> None:
        at_ends: dict[str, int] = dict.fromkeys(self._rules, 0)

        def visit(node: Node, after: int) -> None:
            self._after[id(node)] |= after
            match node:
                case Reference():
                    at_ends[node.name] |= after
                case Choice():
                    for part in node.parts:
                        visit(part, after)
                case Repetition(parts=[part]):
                    visit(part, after if node.most == 1 else after | self._start(part).letters)
                case Series():
                    for part in reversed(node.parts):
                        visit(part, after)
                        start = self._start(part)
                        after = start.letters | (after if start.nullable else 0)

        known: dict[str, int] = {}
        while known != at_ends:
            known = dict(at_ends)
            for rule, body in self._rules.items():
                visit(body, at_ends[rule])

    def _find_whole(self) -> None:
        """Find the rules that can be terminals. Rules that need themselves never get there."""
        self._whole: set[str] = set()
        changed = True
        while changed:
            before = len(self._whole)
            for rule, body in reversed([*self._rules.items()]):
                if rule not in self._whole and self.is_whole(body):
                    self._whole.add(rule)
            changed = len(self._whole) > before


def _bounds(bodies: Iterable[Node]) -> list[int]:
    """Return the code points at which a class of characters starts: all sets treat it the same."""
    bounds, left = {0, LAST_CODE + 1}, [*bodies]
    while left:
        node = left.pop()
        if isinstance(node, Characters):
            bounds.update(code for low, high in node.ranges for code in (low, high + 1))
        elif not isinstance(node, Reference | SpecialToken):
            left += node.parts
    return sorted(bounds)


def _first_byte(code: int) -> int:
    return chr(code).encode(errors="surrogatepass")[0]
