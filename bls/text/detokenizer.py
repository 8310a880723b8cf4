"""Incremental detokenization of a growing answer, up to a stop string.

`postprocessing` is stateless. It gets a window of ids, the first ``context_length`` of which are
already detokenized. It returns the text that the other ids add, without an unfinished UTF-8
sequence. The window starts at the last ids that produced text, so it is only a few tokens long. An
unfinished character is completed by later ids, or shown at the end, when the whole answer is
detokenized once. So the chunks always add up to the text of an answer without streaming.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

import numpy as np

from tandem.bls.effects import Chunk, DecodedText, TextCall
from tandem.bls.request import Request, TokenIds
from tandem.bls.text.stop_strings import StopStrings
from tandem.bls.text.token_details import NO_COUNTS, Counts


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

    each_round: whether to return text before the end of the answer.
    """

    def __init__(self, request: Request, *, each_round: bool) -> None:
        self._prompt = request.echoed_ids  # a character may begin in the prompt
        self._each_round = each_round
        self._wants_lengths = each_round and request.return_text_lengths
        self._stops = StopStrings(request.stop_strings)
        self._window = self._prompt  # tokens that may share a character with the next ones
        self._length = 0  # number of characters received

    @property
    def stop_string(self) -> str:
        """The stop string that ended the answer; "" if none was found."""
        return self._stops.found

    def extend(self, tokens: TokenIds) -> Generator[TextCall, DecodedText, NewText]:
        """Return the text that ``tokens`` add, and how many of the tokens the answer keeps.

        The token that completes a stop string is the last one kept.
        """
        if not self._each_round or len(tokens) == 0:
            return NewText("", len(tokens), NO_COUNTS if self._wants_lengths else None)
        window, context_length = np.concatenate([self._window, tokens]), len(self._window)
        text, lengths = yield TextCall(window, context_length, self._wants_lengths)
        if self._stops.would_find(text):
            text, kept = yield from self._until_stop(window, context_length, text)
            kept_lengths = None if lengths is None else lengths[:kept]
            return NewText(self._stops.feed(text), kept, kept_lengths)
        self._window = tokens if text else window
        self._length += len(text)
        return NewText(self._stops.feed(text), len(tokens), lengths)

    def finish(self, output: TokenIds) -> Generator[TextCall, DecodedText, str]:
        """Return the rest of the text. output: all tokens of the complete answer.

        Only this method shows an unfinished character, which may complete a stop string.
        """
        if self.stop_string:
            return ""
        shown = self._length
        if len(self._prompt):
            output = np.concatenate([self._prompt, output])
            before, _ = yield TextCall(self._prompt, 0)
            shown += len(before)
        if len(output) == 0:
            return ""
        whole, _ = yield TextCall(output, None)
        return self._stops.feed(whole[shown:]) + self._stops.flush()

    def _until_stop(
        self, window: TokenIds, context_length: int, text: str
    ) -> Generator[TextCall, DecodedText, tuple[str, int]]:
        """Return the text up to the token that completes a stop string, and its number of tokens.

        Later tokens may complete another stop string that begins earlier. That string must not
        count, because with one token per round, the answer would have ended before those tokens.
        """
        for end in range(context_length + 1, len(window)):
            shorter, _ = yield TextCall(window[:end], context_length)
            if self._stops.would_find(shorter):
                return shorter, end - context_length
        return text, len(window) - context_length


def detokenize_stream(
    request: Request, chunks: Iterable[Chunk]
) -> Generator[TextCall | Chunk, Any, None]:
    """Yield the chunks of a streamed answer with their text.

    No round waits for the text, because no stop string can end the answer.
    """
    text_so_far = IncrementalDetokenizer(request, each_round=True)
    output: list[TokenIds] = []
    for chunk in chunks:
        text, _, lengths = yield from text_so_far.extend(chunk.tokens)
        output.append(chunk.tokens)
        if chunk.finish_reason is not None:
            text += yield from text_so_far.finish(np.concatenate(output))
        yield chunk._replace(text=text, details=chunk.details._replace(text_lengths=lengths))
        if chunk.finish_reason is not None:
            return
