"""Compiles guides, and keeps those that were compiled last."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from tandem.guides.automaton import MOST_STATES, GuideAutomaton
from tandem.guides.errors import EndsExcluded, GuideError, GuideTakesLong, GuideUndecided
from tandem.guides.grammar import grammar_of
from tandem.guides.guide import Guide
from tandem.guides.low_priority import at_low_priority
from tandem.guides.matcher import WORD_BITS, GuideMatcher, Vocabulary, reason_of
from tandem.guides.plain import is_plain
from tandem.guides.trial import ATTEMPT_SECONDS, LAST_ATTEMPT, TURNS, try_out
from tandem.preprocessing.tokenizer import load_tokenizer

KEPT_BYTES = 512 * 2**20  # of compiled guides, as they have grown
KEPT_GUIDES = 64
KEPT_DIGESTS = 1024  # of guides that were refused, and of those that took more than one attempt
TAKES_LONG = "it takes long to compile"
SILENT = 0
MASK_THREADS = 2
TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


class GuideCompiler:
    """Makes a matcher of a guide, for one vocabulary. Thread-safe.

    Building one holds Python's lock for as long as the library reads the tokenizer: 0.3 s for
    49,152 tokens. Compiling does not hold it. Raises GuideError for a tokenizer whose tokens are
    not made of bytes: such as T5's, or whole words.
    """

    def __init__(self, tokenizer_dir: Path, vocab_size: int, end_ids: Sequence[int]) -> None:
        read = load_tokenizer(tokenizer_dir)
        self._tokenizer = _tokenizer(read, vocab_size, end_ids)
        added = list(read.get_added_tokens_decoder())
        self._vocabulary = _vocabulary(self._tokenizer, vocab_size, end_ids, added)
        self._executor = LLExecutor(MASK_THREADS)
        # Without verbose errors, which hold the answer's text.
        self._limits = LLParserLimits(verbose_errors=False, max_lexer_states=MOST_STATES)
        self._kept: OrderedDict[Guide, GuideAutomaton] = OrderedDict()
        self._refusals: OrderedDict[bytes, str] = OrderedDict()  # by the guides' digests
        self._attempts: OrderedDict[bytes, int] = OrderedDict()  # that were not enough for one
        self._lock = threading.Lock()

    def has(self, guide: Guide) -> bool:
        """Whether it is known what comes of a guide, so that asking costs next to nothing."""
        with self._lock:
            return guide in self._kept or _digest(guide) in self._refusals

    def matcher(
        self, guide: Guide, end_ids: Sequence[int], *, attempt: int = LAST_ATTEMPT
    ) -> GuideMatcher:
        """Return a matcher at the beginning of an answer; raise GuideError where there is none.

        end_ids: what ends the answer. The first mask is made here: some guides fail only there.
        attempt: of ATTEMPT_SECONDS; GuideTakesLong is raised where a later one may be enough.
        """
        used: GuideAutomaton | None = None

        def fresh() -> GuideAutomaton:
            nonlocal used
            if used is not None:
                self._forget(guide, used)
            used = self._automaton(guide, tried=used is not None, attempt=attempt)
            return used

        matcher = GuideMatcher(fresh, self._executor, self._vocabulary, end_ids)
        try:
            matcher.check_start()
        except (GuideUndecided, EndsExcluded):  # which say nothing of the guide for others
            raise
        except GuideError as error:
            if used is not None:
                self._forget(guide, used)
            self._refuse(guide, str(error))
            raise
        return matcher

    def _automaton(self, guide: Guide, *, tried: bool, attempt: int) -> GuideAutomaton:
        """Return what the answers by a guide share."""
        with self._lock:
            if guide in self._kept:
                self._kept.move_to_end(guide)
                kept = self._kept[guide]
                self._make_room()
                return kept
            refused = self._refusals.get(_digest(guide))
            enough = self._attempts.get(_digest(guide), 0)
        if refused is not None:
            raise GuideError(refused)
        if attempt < enough and not tried:
            raise GuideTakesLong(TAKES_LONG)
        try:
            tried = tried or is_plain(guide)
            grammar = grammar_of(guide) if tried else self._tried_out(guide, attempt)
            with TURNS.at_work(ATTEMPT_SECONDS[attempt]):
                compiled = self._compiled(grammar)
        except GuideTakesLong:
            self._remember(guide, attempt + 1)
            raise
        except GuideUndecided:
            raise
        except GuideError as error:
            self._refuse(guide, str(error))
            raise
        return self._keep(guide, GuideAutomaton(compiled, guide.text))

    def _tried_out(self, guide: Guide, attempt: int) -> str:
        """Return its grammar, from a copy of this process that has compiled it."""

        def compile_first_mask() -> str:
            grammar = grammar_of(guide)
            try:
                compiled = self._compile(grammar)
                if not compiled.is_error():
                    compiled = compiled.deep_copy()
                    compiled.compute_bitmask()
            except Exception:  # noqa: BLE001  the library says later what is wrong with it
                return grammar
            _refuse_error(compiled)
            return grammar

        try:
            grammar = try_out(compile_first_mask, ATTEMPT_SECONDS[attempt])
        except GuideTakesLong as error:
            if attempt < LAST_ATTEMPT:
                raise
            raise GuideError(str(error)) from error
        return grammar_of(guide) if grammar is None else grammar

    def _compiled(self, grammar: str) -> LLMatcher:
        compiled = at_low_priority(lambda: self._compile(grammar))
        _refuse_error(compiled)
        return compiled

    def _compile(self, grammar: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, grammar, log_level=SILENT, limits=self._limits)

    def _keep(self, guide: Guide, compiled: GuideAutomaton) -> GuideAutomaton:
        with self._lock:
            kept = self._kept.setdefault(guide, compiled)
            self._make_room()
            return kept

    def _refuse(self, guide: Guide, reason: str) -> None:
        """Keep why it cannot be compiled: clients send the same guide with each request.

        What was tried of it may have taken hundreds of megabytes, which glibc would keep.
        """
        with self._lock:
            self._refusals[_digest(guide)] = reason
            if len(self._refusals) > KEPT_DIGESTS:
                self._refusals.popitem(last=False)
        if TRIM is not None:
            TRIM(0)

    def _remember(self, guide: Guide, attempt: int) -> None:
        """Make no earlier attempt at it where others wait: many clients may send it at once."""
        with self._lock:
            self._attempts[_digest(guide)] = attempt
            if len(self._attempts) > KEPT_DIGESTS:
                self._attempts.popitem(last=False)

    def _make_room(self) -> None:
        """Forget what was used longest ago, or has grown most: once compiled anew, it is small."""
        while len(self._kept) > KEPT_GUIDES:
            self._kept.popitem(last=False)
        sizes = {guide: kept.most_bytes for guide, kept in self._kept.items()}
        while sum(sizes.values()) > KEPT_BYTES:
            largest = max(sizes, key=lambda guide: sizes[guide])
            del self._kept[largest], sizes[largest]

    def _forget(self, guide: Guide, full: GuideAutomaton) -> None:
        """Keep no longer what is full; another answer may have seen to it already."""
        with self._lock:
            if self._kept.get(guide) is full:
                del self._kept[guide]


def _refuse_error(compiled: LLMatcher) -> None:
    if compiled.is_error():
        raise GuideError(reason_of(compiled.get_error()))


def _tokenizer(read: Tokenizer, vocab_size: int, end_ids: Sequence[int]) -> LLTokenizer:
    """Read a tokenizer; the library's own choice of an end of sequence is wrong for some."""
    text = read.to_str()
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(end_ids))
    except ValueError as error:
        raise GuideError("llguidance cannot read its tokenizer") from error


def _vocabulary(
    tokenizer: LLTokenizer, size: int, end_ids: Sequence[int], added: Sequence[int]
) -> Vocabulary:
    """Return what matchers know of it. added: the tokens that may be special."""
    special = np.zeros(-(-size // WORD_BITS) * WORD_BITS, bool)
    special[[token for token in added if tokenizer.is_special_token(token)]] = True
    bits = np.packbits(special, bitorder="little")
    return Vocabulary(
        size,
        tuple(end_ids),
        bits.view(np.int32),
        lambda text: int(tokenizer.tokenize_bytes(text)[0]),
    )


def _digest(guide: Guide) -> bytes:
    return hashlib.blake2b(f"{guide.kind} {guide.text}".encode(errors="surrogatepass")).digest()
