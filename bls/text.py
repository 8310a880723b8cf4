"""The text of a growing answer: incremental detokenization, up to a stop string.

A detokenizer is stateless. It gets a window of ids, the first ``context_length`` of which are
already detokenized. It returns the text that the other ids add, without an unfinished UTF-8
sequence. The window starts at the last ids that produced text, so it is only a few tokens long. An
unfinished character is completed by later ids, or shown at the end, when the whole answer is
detokenized once. So the chunks always add up to the text of an answer without streaming.

Stop strings are found across tokens and rounds.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from tandem.bls.ports import NO_COUNTS, Counts, DecodedText
from tandem.bls.request import Request, TokenIds
from tandem.postprocessing.detokenizer import (
    Detokenizer,
    decode_chunk,
    make_detokenizer,
    text_lengths,
)
from tandem.preprocessing.tokenizer import load_tokenizer


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


Decode: TypeAlias = Callable[..., DecodedText]  # `LoopPorts.decode`


def load_decode(folder: Path, *, skip_special_tokens: bool) -> Decode:
    """Return `LoopPorts.decode` for the tokenizer in a folder."""
    tokenizer = load_tokenizer(folder)
    return decode_with(make_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens))


def decode_with(detokenizer: Detokenizer) -> Decode:
    """Return `LoopPorts.decode` for a detokenizer, in this process."""

    def decode(
        window: TokenIds, context_length: int | None, *, wants_lengths: bool = False
    ) -> DecodedText:
        ids = window.tolist()
        if context_length is None:
            return DecodedText(detokenizer.decode_all(ids))
        text = decode_chunk(detokenizer, ids, context_length)
        if not wants_lengths:
            return DecodedText(text)
        return DecodedText(text, np.array(text_lengths(detokenizer, ids, context_length), np.int32))

    return decode


class NewText(NamedTuple):
    """New text of an answer.

    text: text that may be shown. num_kept: number of new tokens that the answer keeps. lengths:
    number of characters that each kept token completes, shown or withheld, [num_kept]; None if not
    requested.
    """

    text: str
    num_kept: int
    lengths: Counts | None = None


class IncrementalDetokenizer:
    """Turns the tokens of each round into text that may be shown.

    Rounds have no text if the client wants none before the end, and no stop string may end it.
    """

    def __init__(self, request: Request) -> None:
        self._prompt = request.echoed_ids  # a character may begin in the prompt
        self._wants_lengths = request.return_text_lengths
        self._each_round = request.stream or self._wants_lengths or bool(request.stop_strings)
        self._stops = StopStrings(request.stop_strings)
        self._window = self._prompt  # tokens that may share a character with the next ones
        self._length = 0  # number of characters received

    @property
    def stop_string(self) -> str:
        """The stop string that ended the answer; "" if none was found."""
        return self._stops.found

    def extend(self, tokens: TokenIds, decode: Decode) -> NewText:
        """Return the text that ``tokens`` add, and how many of the tokens the answer keeps.

        The token that completes a stop string is the last one kept.
        """
        if not self._each_round or len(tokens) == 0:
            return NewText("", len(tokens), NO_COUNTS if self._wants_lengths else None)
        window, context_length = np.concatenate([self._window, tokens]), len(self._window)
        text, lengths = decode(window, context_length, wants_lengths=self._wants_lengths)
        if self._stops.would_find(text):
            text, kept = self._until_stop(window, context_length, text, decode)
            kept_lengths = None if lengths is None else lengths[:kept]
            return NewText(self._stops.feed(text), kept, kept_lengths)
        self._window = tokens if text else window
        self._length += len(text)
        return NewText(self._stops.feed(text), len(tokens), lengths)

    def finish(self, output: TokenIds, decode: Decode) -> str:
        """Return the rest of the text. output: all tokens of the complete answer.

        Only this method shows an unfinished character, which may complete a stop string.
        """
        if self.stop_string:
            return ""
        shown = self._length
        if len(self._prompt):
            output = np.concatenate([self._prompt, output])
            before, _ = decode(self._prompt, 0)
            shown += len(before)
        if len(output) == 0:
            return ""
        whole, _ = decode(output, None)
        return self._stops.feed(whole[shown:]) + self._stops.flush()

    def _until_stop(
        self, window: TokenIds, context_length: int, text: str, decode: Decode
    ) -> tuple[str, int]:
        """Return the text up to the token that completes a stop string, and its number of tokens.

        Later tokens may complete another stop string that begins earlier. That string must not
        count, because with one token per round, the answer would have ended before those tokens.
        """
        for end in range(context_length + 1, len(window)):
            shorter, _ = decode(window[:end], context_length)
            if self._stops.would_find(shorter):
                return shorter, end - context_length
        return text, len(window) - context_length
