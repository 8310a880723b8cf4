"""Guides and matchers for a small vocabulary."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import tokenizer_kinds
from error_lines import error_line

from tandem.contract.guide import Guide
from tandem.guides.compiler import GuideCompiler
from tandem.guides.errors import GuideError

END, OTHER_END = 2, 1
FOLDER = tempfile.TemporaryDirectory()  # for workers, which load the tokenizer
PADDING = 13  # number of target logits after the tokenizer's vocabulary


@functools.cache
def tokenizer():
    return tokenizer_kinds.byte_level()


@functools.cache
def compiler() -> GuideCompiler:
    tokenizer_kinds.write(tokenizer(), Path(FOLDER.name))
    return GuideCompiler(Path(FOLDER.name), vocab_size(), [END, OTHER_END])


def is_cached(its_compiler: GuideCompiler, guide: Guide) -> bool:
    """Return whether a compiler's cache has a guide, compiled or rejected."""
    try:
        return its_compiler._find_cached(guide) is not None
    except GuideError:
        return True


def vocab_size() -> int:
    return tokenizer().get_vocab_size() + PADDING


def matcher(kind: str, text: str = "", ends=(END, OTHER_END)):
    return compiler().matcher(Guide(kind, text), ends)


def encoded(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


def decoded(ids) -> str:
    return tokenizer().decode(list(ids), skip_special_tokens=False)


def allowed(mask) -> list[int]:
    """Return the ids that a row of a mask allows, including padding."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


@functools.cache
def _pieces() -> list[bytes]:
    """Return the bytes of each token: empty for padding and for tokens that aren't text."""
    special = tokenizer_kinds.SPECIAL
    count, words = tokenizer().get_vocab_size(), -(-vocab_size() // 32) * 32
    read = compiler()._tokenizer
    return [
        read.decode_bytes([token])
        if token < count and tokenizer().id_to_token(token) not in special
        else b""
        for token in range(words)
    ]


def spelled(token: int) -> bytes:
    return _pieces()[token]


@functools.cache
def _ids() -> dict[bytes, int]:
    """Return the first id of each token's bytes."""
    return {piece: token for token, piece in reversed([*enumerate(_pieces())]) if piece}


def fits(kind: str, guide: str, text: str) -> bool:
    """Return whether a guide allows an answer with this text.

    The text is also checked byte by byte, because a guided answer may split a character into
    several tokens.
    """
    it, left = matcher(kind, guide), text.encode()
    sizes = range(max(map(len, _ids())), 0, -1)
    while left:
        may = set(allowed(it.walk([]).masks[0]))
        tokens = (_ids().get(left[:size]) for size in sizes)
        longest = next((token for token in tokens if token in may), None)
        if longest is None or it.complete:
            return False
        it.advance([longest])
        left = left[len(spelled(longest)) :]
    return END in allowed(it.walk([]).masks[0])


def rejection(kind: str, guide: str) -> str:
    """Return the one-line error of a rejected guide."""
    return error_line(GuideError, matcher, kind, guide)
