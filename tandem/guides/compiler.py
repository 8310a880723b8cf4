"""Compiles guides and caches the results. All answers with a guide share its compiled form."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

from llguidance import LLExecutor, LLMatcher

from tandem.contract.guide import Guide
from tandem.contract.heap import trim_heap
from tandem.guides.errors import GuideError, GuideTakesLong, GuideUndecided, one_line_reason
from tandem.guides.grammar import read_tokenizer
from tandem.guides.matcher import GuideMatcher
from tandem.guides.worker import LIMITS, MAX_STATES, SILENT, ValidGuide, Worker

STATE_BYTES: Final = 2_000  # maximum size of a state
# Assumed growth per second of work (250 MB/s was measured). The library doesn't report the size.
BYTES_PER_SECOND: Final = 500_000_000
MAX_CACHE_BYTES = 512 * 2**20  # maximum size of all cached guides, including their growth
MAX_CACHED_GUIDES = 64
MAX_CACHED_REJECTIONS = 1024
# CPU seconds for the first and the second attempt to compile a guide. Each attempt has its own
# queue, so that slow guides don't delay fast ones.
ATTEMPT_SECONDS = (0.1, 4.0)
MASK_THREADS = 2


class GuideAutomaton:
    """A compiled guide. It grows and never shrinks. Thread-safe.

    The library has its own lock, but holds the GIL while it waits for that lock. So slow calls of a
    matcher belong inside ``lock_and_time``.

    Once the automaton has reached its state limit (is *full*), its matchers reject every byte,
    often without an error. So a result of a matcher is valid only if ``error`` returns no error
    after it.
    """

    def __init__(self, compiled: LLMatcher, valid_guide: ValidGuide) -> None:
        self.valid_guide = valid_guide
        self._compiled = compiled
        self._probe = compiled.deep_copy()
        self._probe_is_forced = True  # whether text may be forced at the probe's position
        self._lock = threading.Lock()
        self._seconds = 0.0

    @property
    def max_bytes(self) -> int:
        """Upper bound on the current memory use in bytes."""
        grown = min(self._seconds * BYTES_PER_SECOND, MAX_STATES * STATE_BYTES)
        return self.valid_guide.num_bytes + int(grown)

    def new_matcher(self) -> LLMatcher:
        """Return a matcher of the library at the start of an answer."""
        return self._compiled.deep_copy()

    @contextmanager
    def lock_and_time(self) -> Iterator[None]:
        """Lock the automaton and measure how long it is used."""
        with self._lock:
            began = perf_counter()
            try:
                yield
            finally:
                self._seconds += perf_counter() - began

    def error(self) -> str:
        """Return the error that makes the automaton's matchers invalid, or "" if they are valid.

        The library detects an error only when it computes a mask or processes a token that isn't
        cached. So a probe matcher stays at a position where no text is forced, and computes the
        same mask each time, which takes 1 us.
        """
        mask = self._probe.compute_bitmask()
        if self._probe_is_forced and not self._probe.is_error():
            self._probe_is_forced = bool(self._probe.compute_ff_bytes())
            if self._probe_is_forced:
                self._probe.consume_token(_first(mask))
        return self._probe.get_error()


def _first(mask: bytes) -> int:
    """Return the smallest token id that a mask allows."""
    bits = int.from_bytes(mask, "little")
    return (bits & -bits).bit_length() - 1


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
