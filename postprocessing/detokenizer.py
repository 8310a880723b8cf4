"""Convert token ids to text, all at once or in chunks. Text that was shown never changes later.

A growing stream is decoded by stateless calls. The caller sends a window of the latest ids, and the
number of ids at its start that an earlier call has already received (the context). The result is
the complete text that the other ids add. Text is complete if no later id can change it.

The caller's protocol for a sequence with the output ids ``ids``::

    start = shown = 0
    sent = b""

    while more ids come:
        chunk = CHUNK(ids[start:], context_length=shown - start)
        if chunk:
            start = shown  # the ids that made text are the next context
        shown = len(ids)
        sent += chunk

    whole = WHOLE(ids)  # the last call: no context length, all ids
    chunk = whole[len(sent):]  # in bytes: the withheld text; whole.startswith(sent)

The joined chunks equal the whole text, byte for byte, however the ids are divided. The last call
must be a WHOLE one, because only then is an incomplete character final and shown as U+FFFD. A
stream that a stop string ended doesn't need this call. ``start`` must not move on an empty chunk.

The following shows why no earlier ids are needed. Assume that a call returned text, so that its new
ids become the context.

- Byte-level BPE (GPT-2, Llama 3, Qwen): an id stands for some bytes. The text is their UTF-8
  decoding, with a U+FFFD for each maximal invalid part. The decoder's state after the context
  doesn't depend on earlier bytes: a byte that isn't a continuation sets the state. If the context
  has only continuation bytes and one of them completed text, the state after the context is empty
  with and without the earlier bytes.
- SentencePiece with byte fallback (Llama 2, Gemma): consecutive byte ids form one run. When the
  run ends, it is decoded as UTF-8, all or nothing. So a trailing run is withheld, and a call
  returns text only if it has a new id that isn't a byte. That id ends every earlier run.
- Decoders that strip the first space or word mark (Llama 2's Strip, Metaspace): the context
  produced text, so it contains the first piece of the window, and both texts are stripped in the
  same way. This requires that every non-special id produces some text, as in all known
  vocabularies.

A genuine U+FFFD (the bytes EF BF BD) is complete as soon as it arrives, like any character.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from tandem.preprocessing.tokenizer import TokenizerError, special_token_ids

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Detokenizer(Protocol):
    """Decodes the ids of one sequence. Ids that the tokenizer doesn't know produce no text."""

    def decode_all(self, ids: Sequence[int]) -> str:
        """Return the text of all ids. An incomplete character is shown as U+FFFD."""

    def decode_complete(self, ids: Sequence[int]) -> str:
        """Return the part of the text that no further id can change."""


def make_detokenizer(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Detokenizer:
    """Return the detokenizer for a tokenizer's decoder. Raises TokenizerError."""
    steps = _decoder_steps(tokenizer)
    if "ByteLevel" not in steps:
        return PieceDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    others = [step for step in steps if step not in ("ByteLevel", "Fuse")]
    if others:
        raise TokenizerError(f"a decoder with both ByteLevel and {others[0]} isn't supported")
    return ByteLevelDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)


def decode_chunk(detokenizer: Detokenizer, ids: Sequence[int], context_length: int) -> str:
    """Return the complete text that ``ids[context_length:]`` add (see the module's protocol)."""
    before = detokenizer.decode_complete(ids[:context_length])
    return detokenizer.decode_complete(ids)[len(before) :]


def text_lengths(detokenizer: Detokenizer, ids: Sequence[int], context_length: int) -> list[int]:
    """Return the number of characters that each of ``ids[context_length:]`` completes.

    The sum is the length of these ids' chunk. A character that spans several ids counts for the
    last one.
    """
    start, lengths = 0, []
    for shown in range(context_length, len(ids)):
        text = decode_chunk(detokenizer, ids[start : shown + 1], shown - start)
        if text:
            start = shown
        lengths.append(len(text))
    return lengths


class ByteLevelDetokenizer:
    """Byte-level BPE: every id stands for some bytes.

    It doesn't use the library's decoder, because there an incomplete character, invalid bytes and a
    genuine U+FFFD all look the same.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        skipped = special_token_ids(tokenizer) if skip_special_tokens else frozenset()
        self._bytes_of = _TokenBytes(tokenizer, skipped)

    def decode_all(self, ids: Sequence[int]) -> str:
        return self._read(ids).decode("utf-8", "replace")

    def decode_complete(self, ids: Sequence[int]) -> str:
        return codecs.utf_8_decode(self._read(ids), "replace", False)[0]

    def _read(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._bytes_of.__getitem__, ids))


class _TokenBytes(dict[int, bytes]):
    """The bytes of each id, looked up once."""

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        super().__init__(dict.fromkeys(skipped, b""))
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""  # not cached: 2**31 ids are possible
        self[token_id] = found = _token_bytes(token)
        return found


def _token_bytes(token: str) -> bytes:
    """Return the bytes that a token's letters represent. Some added tokens represent themselves."""
    try:
        return bytes(map(_BYTE_OF_LETTER.__getitem__, token))
    except KeyError:
        return token.encode()


def piece_bytes(piece: str) -> bytes | None:
    """Return the bytes that a vocabulary piece represents: one byte, or one per letter."""
    if BYTE_TOKEN.fullmatch(piece):
        return bytes([int(piece[3:-1], 16)])
    if not all(letter in _BYTE_OF_LETTER for letter in piece):
        return None
    return _token_bytes(piece)


def _byte_letters() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes as themselves, others as letters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_letters()


class PieceDetokenizer:
    """All other tokenizers: an id is a piece of text, or one byte of it (``<0xE2>``)."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._skipped = special_token_ids(tokenizer) if skip_special_tokens else frozenset()
        self._byte_fallback = "ByteFallback" in _decoder_steps(tokenizer)

    def decode_all(self, ids: Sequence[int]) -> str:
        """Return the text of all ids. Bytes that don't form a character become U+FFFD."""
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)

    def decode_complete(self, ids: Sequence[int]) -> str:
        end = len(ids)
        while self._byte_fallback and end and self._continues_run(ids[end - 1]):
            end -= 1
        return self.decode_all(ids[:end])

    def _continues_run(self, token_id: int) -> bool:
        """Return whether the id is a byte, or an id that the decoder never sees."""
        if token_id in self._skipped:
            return True
        token = self._tokenizer.id_to_token(token_id)
        return token is None or BYTE_TOKEN.fullmatch(token) is not None


def _decoder_steps(tokenizer: Tokenizer) -> list[str]:
    # Read only the decoder's part of tokenizer.json; the whole file may have megabytes.
    decoder = tokenizer.decoder
    return [] if decoder is None else list(_step_names(json.loads(decoder.__getstate__())))


def _step_names(decoder: dict[str, Any]) -> Iterator[str]:
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _step_names(part)
    else:
        yield decoder["type"]
