"""Uses llguidance directly to check which texts a grammar accepts."""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from llguidance import LLMatcher, LLTokenizer
from paths import TOKENIZER
from tokenizers import AddedToken, Tokenizer

from tandem.contract.guide import Guide
from tandem.guides.grammar import make_grammar

END = 0  # <|endoftext|>
# Kinds of markers: plain text, added tokens, and special tokens, which answers omit.
PLAIN, ADDED, SPECIAL = "plain", "added", "special"


@lru_cache
def tokenizer_with(kind: str, *markers: str) -> Tokenizer:
    """Return the demo's tokenizer with added markers of one kind."""
    made = Tokenizer.from_str((TOKENIZER / "tokenizer.json").read_text())
    if kind != PLAIN:
        tokens = [AddedToken(marker, special=kind == SPECIAL) for marker in markers]
        (made.add_special_tokens if kind == SPECIAL else made.add_tokens)(tokens)
    return made


@lru_cache
def _vocabulary(tokenizer: str) -> LLTokenizer:
    return LLTokenizer(tokenizer, eos_token=END)


class Matcher:
    """Checks texts against a grammar."""

    def __init__(self, tokenizer: Tokenizer, grammar: str) -> None:
        self._tokenizer = tokenizer
        read = make_grammar(Guide("lark_grammar", grammar), tokens_apart(tokenizer))
        self._matcher = LLMatcher(_vocabulary(tokenizer.to_str()), read)
        assert not self._matcher.is_error(), self._matcher.get_error() + grammar

    def takes(self, text: str, cuts: Sequence[int] = ()) -> bool:
        """Return whether a text is a complete answer.

        cuts: character positions. The pieces between them are tokenized separately.
        """
        return self._goes_on(text, cuts) and self._matcher.is_accepting()

    def goes_on(self, text: str) -> bool:
        """Return whether a text is a prefix of an allowed answer."""
        return self._goes_on(text, ())

    def _goes_on(self, text: str, cuts: Sequence[int]) -> bool:
        places = [0, *sorted(cuts), len(text)]
        pieces = [text[a:b] for a, b in pairwise(places)]
        ids = [i for piece in pieces for i in self._tokenizer.encode(piece).ids]
        self._matcher.reset()
        return self._matcher.try_consume_tokens(ids) == len(ids)


def tokens_apart(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the tokens that llguidance doesn't treat as text: token -> id."""
    vocabulary = _vocabulary(tokenizer.to_str())
    added = tokenizer.get_added_tokens_decoder()
    return {t.content: i for i, t in added.items() if vocabulary.is_special_token(i)}


def spaced(value: object) -> str:
    """Encode a value as JSON with spaces, as models write it, and with llguidance's escapes."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
