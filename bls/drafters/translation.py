"""Lets a draft model with a tokenizer of its own propose tokens: through the text.

The draft engine gets the text so far in its own ids, and the text that it drafts becomes ids of the
target. They are a proposal without probabilities, like a copy, so they can't change an answer.

At both seams, the last ids before the seam are tokenized again, together with the text after it,
because a word may continue there. The target's ids are final, so the ids after the seam are used
only if a token begins there. The draft's last ids give way to the ones that fit the longer text.
What the draft engine computed for the ids before them stays in its KV cache, which finds a common
prefix by itself.

Source: string-level exact match (SLEM) of Timor et al., arXiv:2502.05202.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np

from tandem.bls.effects import NO_TOKENS
from tandem.bls.request import TokenIds
from tandem.bls.sequence import Sequence
from tandem.postprocessing.detokenizer import make_detokenizer
from tandem.preprocessing.tokenizer import load_tokenizer

WINDOW = 16  # ids before a seam that are tokenized again
UTF_8_BYTES = 4  # of the longest character


class SeamTokenizer:
    """A tokenizer that also returns where each token begins in the text. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = load_tokenizer(folder)
        added = self._tokenizer.get_added_tokens_decoder()
        self.specials = {number: token.content for number, token in added.items() if token.special}
        self._detokenizer = make_detokenizer(self._tokenizer, skip_special_tokens=True)
        around = self._tokenizer.encode("a").ids
        end = next((at for at, token in enumerate(around) if token not in self.specials), 0)
        self.begins_with = around[:end]  # such as BOS
        self._tokenizer.post_processor = None  # it would cut spaces off the spans below

    def decode(self, ids: list[int]) -> tuple[str, list[int]]:
        """Return the text of ids, and the last ids, which hold a part of a character."""
        for end in range(len(ids), max(-1, len(ids) - UTF_8_BYTES), -1):
            text = self._detokenizer.whole(ids[:end])
            if not text.endswith("\ufffd"):
                return text, ids[end:]
        return self._detokenizer.complete(ids), []  # no UTF-8

    def text(self, ids: list[int]) -> str:
        """Return the text of ids, without an unfinished character at its end."""
        return self.decode(ids)[0]

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text, and the span of characters of each id."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return encoded.ids, encoded.offsets

    def special_id(self, content: str) -> int | None:
        """Return the id of a special token of this name, or None."""
        number = self._tokenizer.token_to_id(content)
        return number if number in self.specials else None


class Translator:
    """The tokenizers of both engines, shared by all requests.

    end_ids: the draft engine's tokens that end an answer.
    """

    def __init__(self, target: Path, draft: Path, end_ids: tuple[int, ...]) -> None:
        self.target = SeamTokenizer(target)
        self.draft = SeamTokenizer(draft)
        self.end_ids = end_ids

    def translation(self) -> Translation:
        """Return the translation of one request."""
        return Translation(self)


class Translation:
    """One request's text in the ids of both engines, while the answer grows."""

    def __init__(self, translator: Translator) -> None:
        self._target, self._draft = translator.target, translator.draft
        self._end_ids = translator.end_ids
        self._num_read = 0  # of the target's ids
        self._last: list[int] = []  # of the ids that were read; none before a special token
        self._text = ""  # of all of them, complete characters only
        self._ids = NO_TOKENS  # of the draft: this text, and special tokens
        self._starts = NO_TOKENS  # where the text of each of these ids begins
        self._num_fixed = 0  # ids up to the last special token

    def context(self, sequence: Sequence) -> TokenIds:
        """Return the draft's ids of the text so far, [n].

        A special token becomes the draft's token of the same name, or nothing if it has none.
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
            is_first = len(self._ids) == 1 and self._ids[0] == known  # BOS, added before
            if known is not None and not is_first:
                self._add_specials([known for _ in run])
        return self._ids

    def stop_ids(self, _: Sequence) -> tuple[int, ...]:
        """Return the ids that end a draft."""
        return self._end_ids

    def verifiable(self, sequence: Sequence, drafted: TokenIds, limit: int) -> TokenIds:
        """Return what the draft engine drafted in ids of the target, at most ``limit``.

        The draft ends before a special token. One that ends the answer becomes the target's.
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
        """Return the target's ids of the text that follows the context."""
        known, unfinished = self._target.decode(self._last)
        ids, spans = self._target.encode(known + text)
        at = _boundary(spans, len(known))
        after = None if at is None else at + len(unfinished)
        if after is None or ids[at:after] != unfinished:
            return self._target.encode(text)[0]
        return ids[after:]

    def _read(self, ids: list[int]) -> None:
        """Append ids of the target, none of which is special, to the text and the draft's ids."""
        before = self._target.text(self._last)
        self._last += ids
        text = self._target.text(self._last)
        if added := text[len(before) :]:
            self._add(added)
        latest = self._last[-WINDOW:]
        known = self._target.text(latest)
        if known and text.endswith(known):  # it doesn't begin within a character
            self._last = latest

    def _add_specials(self, ids: list[int]) -> None:
        self._ids = np.append(self._ids, np.array(ids, np.int32))
        self._starts = np.append(self._starts, np.full(len(ids), len(self._text), np.int32))
        self._num_fixed = len(self._ids)

    def _add(self, text: str) -> None:
        """Append text, and replace the draft's last ids if a longer token now fits."""
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
        """Return how many of the draft's ids stay, and the index of the first new id after them.

        start: the first id that may be replaced; its text is at ``begin``. end: of the text of all
        ids. spans: of the new ids, which begin at ``begin`` too.
        """
        places = [*self._starts[start:].tolist(), end]
        for at in range(len(places) - 1, 0, -1):
            first = _boundary(spans, places[at] - begin)
            if first is not None and places[at] != places[at - 1]:  # it begins a character
                return start + at, first
        return start, 0

    def _window_start(self) -> int:
        """Return the index of the first id that is tokenized again: it begins a character."""
        start = max(self._num_fixed, len(self._ids) - WINDOW)
        while start > self._num_fixed and self._starts[start] == self._starts[start - 1]:
            start -= 1
        return start


def _boundary(spans: list[tuple[int, int]], place: int) -> int | None:
    """Return the index of the first id after ``place`` in the text; None if an id spans it."""
    at = next((at for at, (start, _) in enumerate(spans) if start >= place), len(spans))
    return at if not at or spans[at - 1][1] <= place else None
