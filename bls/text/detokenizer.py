"""The text of a growing answer: which part of it is final, and where a stop string ends it.

`postprocessing` is stateless. It gets a window of ids and the number of ids that already gave their
text, and returns the text that the rest adds, without an unfinished UTF-8 sequence. The window
starts at the ids that last gave text, so it stays a few tokens long. Later ids complete withheld
text, or it is shown at the end, when the whole answer is decoded once. So the chunks always join to
the text of an answer without streaming.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np

from tandem.bls.effects import NO_TOKENS, Chunk, DecodedText, NextChunk, TextCall
from tandem.bls.request import Request, TokenIds
from tandem.bls.text.stop_strings import StopStrings
from tandem.bls.text.token_details import NO_COUNTS, Counts


class NewText(NamedTuple):
    """New text of an answer.

    text: the part that may be shown. num_kept: number of tokens that the answer keeps. lengths:
    [num_kept], characters that each token completes, shown or not; None if not requested.
    """

    text: str
    num_kept: int
    lengths: Counts | None = None


class IncrementalDetokenizer:
    """Turns the tokens of each round into text that may be shown.

    each_round: whether text is wanted before the end. tells_lengths: whether to return how many
    characters each token completes. prompt: ids whose text precedes the answer's: a character may
    begin there.
    """

    def __init__(
        self,
        stop_strings: tuple[str, ...] = (),
        *,
        each_round: bool,
        tells_lengths: bool = False,
        prompt: TokenIds = NO_TOKENS,
    ) -> None:
        self._prompt = prompt
        self._each_round = each_round
        self._tells_lengths = tells_lengths
        self._stops = StopStrings(stop_strings)
        self._window = prompt  # tokens that may share a character with the next ones
        self._length = 0  # characters received

    @property
    def stop_string(self) -> str:
        """The stop string that has ended the answer; empty if none has."""
        return self._stops.found

    def extend(self, tokens: TokenIds) -> Generator[TextCall, DecodedText, NewText]:
        """Return what ``tokens`` add to the visible text, and how many of them the answer keeps.

        The token that completes a stop string is the last one kept.
        """
        if not self._each_round or len(tokens) == 0:
            return NewText("", len(tokens), NO_COUNTS if self._tells_lengths else None)
        window, context_length = np.concatenate([self._window, tokens]), len(self._window)
        text, lengths = yield TextCall(window, context_length, self._tells_lengths)
        if self._stops.would_find(text):
            text, kept = yield from self._until_stop(window, context_length, text)
            kept_lengths = None if lengths is None else lengths[:kept]
            return NewText(self._stops.feed(text), kept, kept_lengths)
        self._window = tokens if text else window
        self._length += len(text)
        return NewText(self._stops.feed(text), len(tokens), lengths)

    def finish(self, output: TokenIds) -> Generator[TextCall, DecodedText, str]:
        """Return the rest of the text; ``output`` is the complete answer.

        An unfinished character shows only here, so it may complete a stop string here.
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

        Later tokens may complete another one that begins earlier: it must not count, because token
        by token the answer would have ended before.
        """
        for end in range(context_length + 1, len(window)):
            shorter, _ = yield TextCall(window[:end], context_length)
            if self._stops.would_find(shorter):
                return shorter, end - context_length
        return text, len(window) - context_length


def detokenize_stream(request: Request) -> Generator[NextChunk | TextCall | Chunk, Any, None]:
    """Detokenize an answer off the critical path: chunks arrive by NextChunk and leave with text.

    No round waits for the text, because it cannot end the answer.
    """
    text_so_far = IncrementalDetokenizer(
        each_round=True, tells_lengths=request.wants_text_lengths, prompt=request.echoed_ids
    )
    output: list[TokenIds] = []
    ended = False
    while not ended:
        chunk = yield NextChunk()
        text, _, lengths = yield from text_so_far.extend(chunk.tokens)
        output.append(chunk.tokens)
        ended = chunk.finish_reason is not None
        if ended:
            text += yield from text_so_far.finish(np.concatenate(output))
        yield chunk._replace(text=text, details=chunk.details._replace(text_lengths=lengths))
