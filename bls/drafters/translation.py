"""Translates between the vocabularies of a target and a draft model with a different tokenizer.

The text so far is tokenized for the draft engine, and the text that it drafts is tokenized for the
target. Like a copy, the resulting draft has no probabilities and can't change the output.

The place where new text follows known ids is a seam. A token may extend across it, so the last
``WINDOW`` ids before it are tokenized again, together with the new text. In the target's
vocabulary, the ids before the seam are final: the new ids are used only if a token begins at the
seam. In the draft's vocabulary, the last ids are replaced if the longer text has other ids. The
draft engine's KV cache still has the ids before them, because it finds the common prefix itself.

Source: string-level exact match (SLEM) of Timor et al., arXiv:2502.05202.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np

from tandem.bls.ports import NO_TOKENS
from tandem.bls.request import TokenIds
from tandem.bls.sequence import Sequence
from tandem.postprocessing.detokenizer import make_detokenizer
from tandem.preprocessing.tokenizer import load_tokenizer

WINDOW = 16  # number of ids before a seam that are tokenized again
UTF_8_BYTES = 4  # length of the longest character


class SeamTokenizer:
    """A tokenizer that also returns where each token begins in the text. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(folder)
        added = self._tokenizer.get_added_tokens_decoder()
        self.specials = {number: token.content for number, token in added.items() if token.special}
        self._detokenizer = make_detokenizer(self._tokenizer, skip_special_tokens=True)
        around = self._tokenizer.encode("a").ids
        end = next((at for at, token in enumerate(around) if token not in self.specials), 0)
        self.begins_with = around[:end]  # special tokens at the start of a text, such as BOS
        self._tokenizer.post_processor = None  # it would exclude spaces from the spans in `encode`

    def decode(self, ids: list[int]) -> tuple[str, list[int]]:
        """Return the text of ``ids`` up to its last complete character, and the ids after it."""
        for end in range(len(ids), max(-1, len(ids) - UTF_8_BYTES), -1):
            text = self._detokenizer.decode_all(ids[:end])
            if not text.endswith("\ufffd"):
                return text, ids[end:]
        return self._detokenizer.decode_complete(ids), []  # the bytes aren't UTF-8

    def text(self, ids: list[int]) -> str:
        """Return the text of ``ids`` up to its last complete character."""
        return self.decode(ids)[0]

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text, and the (start, end) characters of each id."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    def special_id(self, content: str) -> int | None:
        """Return the id of the special token with this content, or None."""
        number = self._tokenizer.token_to_id(content)
        return number if number in self.specials else None


class Translator:
    """The tokenizers of both engines, shared by all requests.

    end_ids: end-of-sequence ids of the draft engine.
    """

    def __init__(self, target: Path, draft: Path, end_ids: tuple[int, ...]) -> None:
        self.target = SeamTokenizer(target)
        self.draft = SeamTokenizer(draft)
        self.end_ids = end_ids

    def translation(self) -> Translation:
        """Return a new translation for one request."""
        return Translation(self)


class Translation:
    """Tracks one request's text in the ids of both engines while the answer grows."""

    def __init__(self, translator: Translator) -> None:
        self._target, self._draft = translator.target, translator.draft
        self._end_ids = translator.end_ids
        self._num_read = 0  # number of the target's ids that were read
        self._last: list[int] = []  # last ids read, at most back to the last special token
        self._text = ""  # text of all ids read, up to the last complete character
        self._ids = NO_TOKENS  # the text and the special tokens in the draft's ids
        self._starts = NO_TOKENS  # index in the text at which each of these ids begins
        self._num_fixed = 0  # number of the draft's ids up to the last special token

    def context(self, sequence: Sequence) -> TokenIds:
        """Return the draft's ids of the text so far, [n].

        A special token becomes the draft's special token with the same content. It is left out if
        the draft's vocabulary doesn't have one.
        """
        new = sequence.context[self._num_read :].tolist()
        if not self._num_read:
            self._add_specials(self._draft.begins_with)
        self._num_read = len(sequence)
        for special, run in groupby(new, self._target.specials.get):
            if special is None:
                self._read(list(run))
                continue
            self._last = []
            known = self._draft.special_id(special)
            is_first = len(self._ids) == 1 and self._ids[0] == known  # BOS was added already
            if known is not None and not is_first:
                self._add_specials([known for _ in run])
        return self._ids

    def stop_ids(self, _: Sequence) -> tuple[int, ...]:
        """Return the draft engine's ids that end a draft."""
        return self._end_ids

    def verifiable(self, sequence: Sequence, drafted: TokenIds, limit: int) -> TokenIds:
        """Return the drafted text as at most ``limit`` ids of the target.

        The draft ends before its first special token. An end of sequence is replaced by the
        target's own.
        """
        ids = drafted.tolist()
        end = next((at for at, token in enumerate(ids) if token in self._draft.specials), len(ids))
        before = self._ids[self._window_start() :].tolist()
        text = self._draft.text(before + ids[:end])[len(self._draft.text(before)) :]
        tokens = self._continuation(text) if text else []
        if end < len(ids) and ids[end] in self._end_ids:
            tokens += sequence.request.end_ids[:1]
        return sequence.up_to_end(np.array(tokens[:limit], np.int32))

    def _continuation(self, text: str) -> list[int]:
        """Return the target's ids for text that follows the context."""
        known, unfinished = self._target.decode(self._last)
        ids, spans = self._target.encode(known + text)
        at = _boundary(spans, len(known))
        after = None if at is None else at + len(unfinished)
        if after is None or ids[at:after] != unfinished:
            return self._target.encode(text)[0]
        return ids[after:]

    def _read(self, ids: list[int]) -> None:
        """Append ids of the target to the text and to the draft's ids. None of them is special."""
        before = self._target.text(self._last)
        self._last += ids
        text = self._target.text(self._last)
        if added := text[len(before) :]:
            self._add(added)
        latest = self._last[-WINDOW:]
        known = self._target.text(latest)
        if known and text.endswith(known):  # the window doesn't begin within a character
            self._last = latest

    def _add_specials(self, ids: list[int]) -> None:
        self._ids = np.append(self._ids, np.array(ids, np.int32))
        self._starts = np.append(self._starts, np.full(len(ids), len(self._text), np.int32))
        self._num_fixed = len(self._ids)

    def _add(self, text: str) -> None:
        """Append text, and replace the draft's last ids if the new text changes them."""
        start = self._window_start()
        begin = int(self._starts[start]) if start < len(self._ids) else len(self._text)
        self._text += text
        ids, spans = self._draft.encode(self._text[begin:])
        kept, first = self._common_boundary(start, begin, len(self._text) - len(text), spans)
        starts = np.array([begin + span[0] for span in spans[first:]], np.int32)
        self._ids = np.concatenate((self._ids[:kept], np.array(ids[first:], np.int32)))
        self._starts = np.concatenate((self._starts[:kept], starts))

    def _common_boundary(
        self, start: int, begin: int, end: int, spans: list[tuple[int, int]]
    ) -> tuple[int, int]:
        """Return how many of the draft's ids to keep, and the index of the first new id after them.

        start: index of the first id that may be replaced. begin: index in the text at which that id
        and the new ids begin. end: end of the old ids' text. spans: (start, end) of each new id,
        relative to ``begin``.
        """
        places = [*self._starts[start:].tolist(), end]
        for at in range(len(places) - 1, 0, -1):
            first = _boundary(spans, places[at] - begin)
            if first is not None and places[at] != places[at - 1]:  # the id begins a character
                return start + at, first
        return start, 0

    def _window_start(self) -> int:
        """Return the index of the first id to tokenize again. That id begins a character."""
        start = max(self._num_fixed, len(self._ids) - WINDOW)
        while start > self._num_fixed and self._starts[start] == self._starts[start - 1]:
            start -= 1
        return start


def _boundary(spans: list[tuple[int, int]], place: int) -> int | None:
    """Return the index of the first id at or after ``place``; None if an id extends across it."""
    at = next((at for at, (start, _) in enumerate(spans) if start >= place), len(spans))
    return at if not at or spans[at - 1][1] <= place else None
