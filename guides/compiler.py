"""Compiles guides, and keeps those that were compiled last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from tandem.guides.errors import GuideError
from tandem.guides.grammar import grammar_of
from tandem.guides.guide import Guide
from tandem.guides.matcher import GuideMatcher, Vocabulary, reason_of
from tandem.guides.trial import try_out
from tandem.preprocessing.tokenizer import load_tokenizer

KEPT_BYTES = 4 * 2**20  # of the texts of compiled guides; what is compiled is some times as much
KEPT_GUIDES = 64
# Of the automaton that all answers by a guide share, which grows as they go: up to 2 kB each.
# Where it is full, a new one begins.
LEXER_STATES = 50_000
SILENT = 0
MASK_THREADS = 2


class GuideCompiler:
    """Makes a matcher of a guide, for one vocabulary. Thread-safe.

    Building one holds Python's lock for as long as the library reads the tokenizer: 0.3 s for
    49,152 tokens. Compiling does not hold it. Raises GuideError for a tokenizer whose tokens are
    not made of bytes: such as T5's, or whole words.
    """

    def __init__(self, tokenizer_dir: Path, vocab_size: int, end_ids: Sequence[int]) -> None:
        self._vocabulary = Vocabulary(vocab_size, tuple(end_ids))
        self._tokenizer = _tokenizer(tokenizer_dir, self._vocabulary)
        self._executor = LLExecutor(MASK_THREADS)
        # Without verbose errors, which hold the answer's text.
        self._limits = LLParserLimits(verbose_errors=False, max_lexer_states=LEXER_STATES)
        self._kept: OrderedDict[Guide, tuple[LLMatcher, threading.Lock]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def has(self, guide: Guide) -> bool:
        """Whether a guide is compiled already, so that a matcher costs next to nothing."""
        with self._lock:
            return guide in self._kept

    def matcher(self, guide: Guide, end_ids: Sequence[int]) -> GuideMatcher:
        """Return a matcher at the beginning of an answer; raise GuideError where there is none.

        end_ids: what ends the answer. The first mask is made here: some guides fail only there.
        """
        used: LLMatcher | None = None

        def fresh() -> tuple[LLMatcher, threading.Lock]:
            nonlocal used
            if used is not None:
                self._forget(guide, used)
            used, lock = self._compiled(guide, tried=used is not None)
            return used.deep_copy(), lock

        matcher = GuideMatcher(fresh, self._executor, self._vocabulary, end_ids)
        matcher.check_start()
        return matcher

    def _compiled(self, guide: Guide, *, tried: bool) -> tuple[LLMatcher, threading.Lock]:
        """Return what is copied for each answer, and the lock that its copies share."""
        with self._lock:
            if guide in self._kept:
                self._kept.move_to_end(guide)
                return self._kept[guide]
        grammar = grammar_of(guide)
        if not tried:
            try_out(lambda: self._compile(grammar).deep_copy().compute_bitmask())
        compiled = self._compile(grammar)
        if compiled.is_error():
            raise GuideError(reason_of(compiled.get_error()))
        return self._keep(guide, compiled)

    def _compile(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=SILENT, limits=self._limits)

    def _keep(self, guide: Guide, compiled: LLMatcher) -> tuple[LLMatcher, threading.Lock]:
        with self._lock:
            if guide in self._kept:
                return self._kept[guide]
            kept = self._kept[guide] = compiled, threading.Lock()
            self._kept_bytes += _size(guide)
            while self._kept_bytes > KEPT_BYTES or len(self._kept) > KEPT_GUIDES:
                if len(self._kept) == 1:
                    break
                oldest, _ = self._kept.popitem(last=False)
                self._kept_bytes -= _size(oldest)
            return kept

    def _forget(self, guide: Guide, compiled: LLMatcher) -> None:
        """Keep no longer what is full; another answer may have seen to it already."""
        with self._lock:
            if guide in self._kept and self._kept[guide][0] is compiled:
                del self._kept[guide]
                self._kept_bytes -= _size(guide)


def _tokenizer(folder: Path, vocabulary: Vocabulary) -> LLTokenizer:
    """Read a tokenizer; the library's own choice of an end of sequence is wrong for some."""
    text = load_tokenizer(folder).to_str()
    try:
        return LLTokenizer(text, n_vocab=vocabulary.size, eos_token=list(vocabulary.end_ids))
    except ValueError as error:
        raise GuideError("llguidance cannot read its tokenizer") from error


def _size(guide: Guide) -> int:
    """At least a kilobyte: small texts may be large grammars."""
    return max(1024, len(guide.text))
