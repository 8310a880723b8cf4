"""Compiles guides and caches the results."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from llguidance import LLExecutor, LLMatcher

from tandem.contract.guide import Guide
from tandem.contract.heap import trim_heap
from tandem.guides.automaton import GuideAutomaton
from tandem.guides.errors import GuideError, GuideTakesLong, GuideUndecided
from tandem.guides.matcher import GuideMatcher, one_line_reason
from tandem.guides.tokenizer import read_tokenizer
from tandem.guides.worker import ValidGuide, Worker
from tandem.guides.worker_process import LIMITS, SILENT

MAX_CACHE_BYTES = 512 * 2**20  # maximum size of all cached guides, including their growth
MAX_CACHED_GUIDES = 64
MAX_CACHED_REJECTIONS = 1024
# CPU seconds for the first and the second attempt to compile a guide. Each attempt has its own
# queue, so that slow guides don't delay fast ones.
ATTEMPT_SECONDS = (0.1, 4.0)
MASK_THREADS = 2


class GuideCompiler:
    """Compiles guides for one vocabulary, and caches them. Thread-safe.

    The constructor holds the GIL while the library reads the tokenizer, which takes 0.3 s for
    49,152 tokens. Compiling doesn't hold it. Raises GuideError for a tokenizer whose tokens don't
    consist of bytes, such as T5's.
    """

    def __init__(self, tokenizer_dir: Path, vocab_size: int, end_ids: Sequence[int]) -> None:
        self._tokenizer = read_tokenizer(tokenizer_dir, vocab_size, end_ids).library
        self._executor = LLExecutor(MASK_THREADS)
        self._limits = LIMITS
        self._automata: OrderedDict[Guide, GuideAutomaton] = OrderedDict()
        self._rejections: OrderedDict[bytes, str] = OrderedDict()  # guide's digest -> reason
        self._lock = threading.Lock()
        self._workers = [
            Worker(seconds, tokenizer_dir, vocab_size, end_ids) for seconds in ATTEMPT_SECONDS
        ]
        with suppress(OSError):  # the first guide retries
            self._workers[0].start()

    def close(self) -> None:
        """Stop the workers. The guides that they are compiling fail with GuideUndecided."""
        for worker in self._workers:
            worker.close()

    def matcher(
        self, guide: Guide, end_ids: Sequence[int], check: Callable[[], None] = lambda: None
    ) -> GuideMatcher:
        """Return a matcher at the start of an answer; raise GuideError for an invalid guide.

        New guides wait in a queue. end_ids: end-of-sequence ids of the request. check: called
        before the guide is compiled; raises if the matcher is no longer needed.
        """
        automaton = self._find_cached(guide) or self._compile_new(guide, check)
        renew = partial(self._renew, guide)
        matcher = GuideMatcher(automaton, renew, self._executor, self._tokenizer, end_ids)
        try:
            matcher.walk([])  # rejects a guide that contradicts the end ids
        finally:
            self._evict()  # the first mask may have enlarged it
        return matcher

    def _compile_new(self, guide: Guide, check: Callable[[], None]) -> GuideAutomaton:
        """Compile a guide in two attempts."""
        reason = ""
        for worker in self._workers:
            try:
                return worker.run(partial(self._try_compile, worker, guide, check))
            except GuideTakesLong as error:
                reason = str(error)
        self._reject(guide, reason)
        raise GuideError(reason)

    def _find_cached(self, guide: Guide) -> GuideAutomaton | None:
        """Return the cached automaton of a guide or None; raise GuideError for a rejected guide."""
        with self._lock:
            rejected = self._rejections.get(_digest(guide))
            if rejected is not None:
                raise GuideError(rejected)
            if guide in self._automata:
                self._automata.move_to_end(guide)
            return self._automata.get(guide)

    def _try_compile(
        self, worker: Worker, guide: Guide, check: Callable[[], None]
    ) -> GuideAutomaton:
        """Compile a guide after a worker has tested it, unless another request has compiled it."""
        check()
        known = self._find_cached(guide)
        if known is not None:
            return known
        try:
            return self._add_to_cache(guide, self._compile(worker.try_out(guide)))
        except GuideUndecided:
            raise
        except GuideError as error:
            self._reject(guide, str(error))
            raise

    def _renew(self, guide: Guide, full: GuideAutomaton) -> GuideAutomaton:
        """Return a replacement for an automaton that has reached its state limit.

        If another answer has already replaced it, return that replacement.
        """
        with self._lock:
            if self._automata.get(guide) is full:
                del self._automata[guide]
        return self._find_cached(guide) or self._add_to_cache(
            guide, self._compile(full.valid_guide)
        )

    def _compile(self, valid_guide: ValidGuide) -> GuideAutomaton:
        compiled = LLMatcher(
            self._tokenizer, valid_guide.grammar, log_level=SILENT, limits=self._limits
        )
        if compiled.is_error():
            raise GuideError(one_line_reason(compiled.get_error()))
        compiled.deep_copy().compute_bitmask()  # the first mask, which can take seconds
        return GuideAutomaton(compiled, valid_guide)

    def _add_to_cache(self, guide: Guide, compiled: GuideAutomaton) -> GuideAutomaton:
        with self._lock:
            return self._automata.setdefault(guide, compiled)

    def _reject(self, guide: Guide, reason: str) -> None:
        """Cache the reason for a rejection, because clients send the same guide repeatedly."""
        with self._lock:
            self._rejections[_digest(guide)] = reason
            if len(self._rejections) > MAX_CACHED_REJECTIONS:
                self._rejections.popitem(last=False)

    def _evict(self) -> None:
        """Drop the least recently used guides if there are too many, and the largest if too large.

        A large guide is small again after it is recompiled.
        """
        dropped = []
        with self._lock:
            while len(self._automata) > MAX_CACHED_GUIDES:
                dropped.append(self._automata.popitem(last=False))
            sizes = {guide: kept.max_bytes for guide, kept in self._automata.items()}
            while sum(sizes.values()) > MAX_CACHE_BYTES:
                largest = max(sizes, key=lambda guide: sizes[guide])
                dropped.append((largest, self._automata.pop(largest)))
                del sizes[largest]
        if dropped:
            dropped.clear()
            trim_heap()


def _digest(guide: Guide) -> bytes:
    return hashlib.blake2b(f"{guide.kind} {guide.text}".encode(errors="surrogatepass")).digest()
