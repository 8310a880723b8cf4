"""Finds stop strings in text, across tokens and rounds."""

from __future__ import annotations

from array import array
from collections import deque


class StopStrings:
    """Withholds text that may be the start of a stop string.

    The time per character depends neither on the number of stop strings nor on the amount of
    withheld text.

    >>> stops = StopStrings(("END",))
    >>> stops.feed("the E"), stops.feed("N"), stops.feed("D!")
    ('the ', '', '')
    >>> stops.found
    'END'
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._automaton = Automaton(stops)
        self._node = 0  # automaton node of the text so far
        self._held: deque[str] = deque()
        self._held_length = 0
        self.found = ""  # the stop string that was found

    def feed(self, text: str) -> str:
        """Append text; return the text that may be shown now. A stop string is never shown."""
        node, start = self._automaton.search(self._node, text)
        self._node = node
        self._held.append(text)
        self._held_length += len(text)
        if start is None:
            return self._release(self._held_length - self._automaton.depth(node))
        shown = self._release(self._held_length - len(text) + start)
        rest = "".join(self._held)
        self.found = min(stop for stop in self._stops if stop and rest.startswith(stop))
        self._held.clear()
        self._held_length = 0
        return shown

    def flush(self) -> str:
        """Return all withheld text. Call it at the end of an answer without a stop string."""
        return self._release(self._held_length)

    def would_find(self, text: str) -> bool:
        """Return whether ``text`` would complete a stop string. Doesn't append the text."""
        return self._automaton.search(self._node, text)[1] is not None

    def _release(self, length: int) -> str:
        """Return the first ``length`` withheld characters."""
        self._held_length -= length
        released = []
        while length:
            piece = self._held.popleft()
            if len(piece) > length:
                self._held.appendleft(piece[length:])
                piece = piece[:length]
            released.append(piece)
            length -= len(piece)
        return "".join(released)


class Automaton:
    """Finds any of several strings in a text that arrives in parts, with one step per character.

    A node stands for a prefix of a string; node 0 is the empty prefix. The node of a text is the
    longest prefix that the text ends with.

    Source: Aho and Corasick, "Efficient string matching", 1975.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._children: dict[tuple[int, str], int] = {}
        # Per node: the length of its prefix, the node of the longest shorter prefix that this
        # prefix ends with, and the length of the longest string that it ends with (0: none).
        self._depth = array("i", [0])
        self._shorter = array("i", [0])
        self._found = array("i", [0])
        self._add(set(strings) - {""})

    def search(self, node: int, text: str) -> tuple[int, int | None]:
        """Continue from ``node``; return the new node and the start of the first string found.

        The start is an index into ``text``, negative if the string begins in earlier text, or None
        if no string is complete.
        """
        if not self._children:
            return 0, None
        first = None
        for end, char in enumerate(text, start=1):
            node = self._next(node, char)
            length = self._found[node]
            if length:
                first = end - length if first is None else min(first, end - length)
        return node, first

    def depth(self, node: int) -> int:
        """Return how many characters at the end of the text may be the start of a string."""
        return self._depth[node]

    def _next(self, node: int, char: str) -> int:
        while (child := self._children.get((node, char))) is None:
            if not node:
                return 0
            node = self._shorter[node]
        return child

    def _add(self, strings: set[str]) -> None:
        """Add all strings at once, character by character, so that shorter prefixes come first."""
        nodes = [(string, 0) for string in strings]
        depth = 0
        while nodes:
            nodes = [(string, self._child(node, string[depth])) for string, node in nodes]
            depth += 1
            for string, node in nodes:
                if len(string) == depth:
                    self._found[node] = depth
            nodes = [(string, node) for string, node in nodes if len(string) > depth]

    def _child(self, node: int, char: str) -> int:
        child = self._children.get((node, char))
        if child is None:
            shorter = self._next(self._shorter[node], char)
            child = self._children[node, char] = len(self._depth)
            self._depth.append(self._depth[node] + 1)
            self._shorter.append(shorter)
            self._found.append(self._found[shorter])
        return child
