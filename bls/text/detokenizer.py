"""Incremental detokenization of a growing answer, up to a stop string.

`postprocessing` is stateless. It gets a window of ids, the first ``context_length`` of which are
already detokenized. It returns the text that the other ids add, without an unfinished UTF-8
sequence. The window starts at the last ids that produced text, so it is only a few tokens long. An
unfinished character is completed by later ids, or shown at the end, when the whole answer is
detokenized once. So the chunks always add up to the text of an answer without streaming.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from tandem.bls.ports import DecodedText
from tandem.bls.request import Request, TokenIds
from tandem.bls.text.stop_strings import StopStrings
from tandem.bls.text.token_details import NO_COUNTS, Counts
from tandem.postprocessing.detokenizer import (
    Detokenizer,
    decode_chunk,
    make_detokenizer,
    text_lengths,
)
from tandem.preprocessing.tokenizer import load_tokenizer

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
