"""Compiles guides and caches the results."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer

from tandem.contract.heap import trim_heap
from tandem.guides.automaton import GuideAutomaton
from tandem.guides.errors import EndsExcluded, GuideError, GuideTakesLong, GuideUndecided
from tandem.guides.guide import Guide
from tandem.guides.matcher import WORD_BITS, GuideMatcher, Vocabulary, reason_of
from tandem.guides.trial import Tried, Worker
from tandem.guides.worker import LIMITS, NICENESS, SILENT, read_tokenizer
from tandem.preprocessing.tokenizer import load_tokenizer

T = TypeVar("T")

KEPT_BYTES = 512 * 2**20  # of compiled guides, including their growth
KEPT_GUIDES = 64
KEPT_REFUSALS = 1024
# CPU time of the first and the second attempt at a guide. Each attempt has its own queue, so a
# guide that takes seconds doesn't delay quick ones.
ATTEMPT_SECONDS = (0.1, 4.0)
MASK_THREADS = 2


class GuideCompiler:
    """Makes matchers of guides, for one vocabulary. Thread-safe.

    The constructor holds Python's lock while the library reads the tokenizer: 0.3 s for 49,152
    tokens. Compiling doesn't hold it. Raises GuideError for a tokenizer whose tokens aren't made of
    bytes, such as T5's.
    """

    def __init__(self, tokenizer_dir: Path, vocab_size: int, end_ids: Sequence[int]) -> None:
        read = load_tokenizer(tokenizer_dir)
        self._tokenizer = read_tokenizer(read, vocab_size, end_ids)
        added = list(read.get_added_tokens_decoder())
        self._vocabulary = _vocabulary(self._tokenizer, vocab_size, end_ids, added)
        self._executor = LLExecutor(MASK_THREADS)
        self._limits = LIMITS
        self._kept: OrderedDict[Guide, GuideAutomaton] = OrderedDict()
        self._refusals: OrderedDict[bytes, str] = OrderedDict()  # by the guides' digests
        self._lock = threading.Lock()
        self._attempts = [
            Attempt(seconds, Worker(tokenizer_dir, vocab_size, end_ids), LowPriorityThread())
            for seconds in ATTEMPT_SECONDS
        ]
        self._renewing = LowPriorityThread()
        with suppress(OSError):  # the first guide tries again
            self._attempts[0].worker.start()

    def close(self) -> None:
        """Stop the workers; raise GuideUndecided for the guides they are compiling."""
        for attempt in self._attempts:
            attempt.worker.close()

    def has(self, guide: Guide) -> bool:
        """Whether a guide is cached, as compiled or as rejected."""
        with self._lock:
            return guide in self._kept or _digest(guide) in self._refusals

    def matcher(
        self, guide: Guide, end_ids: Sequence[int], check: Callable[[], None] = lambda: None
    ) -> GuideMatcher:
        """Return a matcher at the start of an answer; raise GuideError for an invalid guide.

        New guides wait in a queue. end_ids: end-of-sequence ids of the request. check: called
        before the guide is compiled; raises if the matcher is no longer needed.
        """
        known = self._known(guide)
        if known is not None:
            return self._begin(guide, known, end_ids)
        for attempt in self._attempts:
            with suppress(GuideTakesLong):
                return attempt.thread.do(partial(self._try, attempt, guide, end_ids, check))
        reason = f"it takes longer than {ATTEMPT_SECONDS[-1]:g} s to compile; send a simpler one"
        self._refuse(guide, reason)
        raise GuideError(reason)

    def _known(self, guide: Guide) -> GuideAutomaton | None:
        """Return the automaton of a cached guide, if any; raise GuideError for a rejected one."""
        with self._lock:
            refused = self._refusals.get(_digest(guide))
            if refused is not None:
                raise GuideError(refused)
            if guide in self._kept:
                self._kept.move_to_end(guide)
            return self._kept.get(guide)

    def _try(
        self, attempt: Attempt, guide: Guide, end_ids: Sequence[int], check: Callable[[], None]
    ) -> GuideMatcher:
        """Compile a guide after a worker has checked it, unless another request already did."""
        check()
        automaton = self._known(guide)
        if automaton is None:
            try:
                tried = attempt.worker.try_out(guide, attempt.seconds)
                automaton = self._keep(guide, self._compile(tried))
            except GuideUndecided:
                raise
            except GuideError as error:
                self._refuse(guide, str(error))
                raise
        return self._begin(guide, automaton, end_ids)

    def _begin(
        self, guide: Guide, automaton: GuideAutomaton, end_ids: Sequence[int]
    ) -> GuideMatcher:
        """Return a matcher after computing its first mask, at which some guides fail."""
        used: GuideAutomaton | None = None

        def fresh() -> GuideAutomaton:
            nonlocal used
            used = automaton if used is None else self._renewed(guide, used)
            return used

        matcher = GuideMatcher(fresh, self._executor, self._vocabulary, end_ids)
        try:
            matcher.check_start()
        except (GuideUndecided, EndsExcluded):  # other requests may succeed
            raise
        except GuideError as error:
            self._forget(guide, used or automaton)
            self._refuse(guide, str(error))
            raise
        self._make_room()  # the first mask may have enlarged it
        return matcher

    def _renewed(self, guide: Guide, full: GuideAutomaton) -> GuideAutomaton:
        """Return a replacement for a full automaton; another answer may have made one."""
        self._forget(guide, full)
        known = self._known(guide)
        if known is not None:
            return known
        return self._keep(guide, self._renewing.do(partial(self._compile, full.tried)))

    def _compile(self, tried: Tried) -> GuideAutomaton:
        compiled = LLMatcher(self._tokenizer, tried.grammar, log_level=SILENT, limits=self._limits)
        if compiled.is_error():
            raise GuideError(reason_of(compiled.get_error()))
        return GuideAutomaton(compiled, tried)

    def _keep(self, guide: Guide, compiled: GuideAutomaton) -> GuideAutomaton:
        with self._lock:
            return self._kept.setdefault(guide, compiled)

    def _refuse(self, guide: Guide, reason: str) -> None:
        """Cache the reason of a rejection: clients send the same guide with each request."""
        with self._lock:
            self._refusals[_digest(guide)] = reason
            if len(self._refusals) > KEPT_REFUSALS:
                self._refusals.popitem(last=False)

    def _make_room(self) -> None:
        """Drop the least recently used guides, and the largest: recompiled, they are small."""
        dropped = []
        with self._lock:
            while len(self._kept) > KEPT_GUIDES:
                dropped.append(self._kept.popitem(last=False))
            sizes = {guide: kept.most_bytes for guide, kept in self._kept.items()}
            while sum(sizes.values()) > KEPT_BYTES:
                largest = max(sizes, key=lambda guide: sizes[guide])
                dropped.append((largest, self._kept.pop(largest)))
                del sizes[largest]
        if dropped:
            dropped.clear()
            trim_heap()

    def _forget(self, guide: Guide, full: GuideAutomaton) -> None:
        """Drop a full automaton, unless another answer has replaced it."""
        with self._lock:
            if self._kept.get(guide) is full:
                del self._kept[guide]


class LowPriorityThread:
    """Runs one task at a time on a low-priority thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=os.nice, initargs=(NICENESS,))

    def do(self, work: Callable[[], T]) -> T:
        """Return the result of the work; raise GuideUndecided if no thread can be started."""
        try:
            done = self._thread.submit(work)
        except RuntimeError as error:
            raise GuideUndecided("no thread was available to compile it") from error
        return done.result()


class Attempt(NamedTuple):
    """A worker with a limit of CPU seconds per guide, and the thread that waits for it."""

    seconds: float
    worker: Worker
    thread: LowPriorityThread


def _vocabulary(
    tokenizer: LLTokenizer, size: int, end_ids: Sequence[int], added: Sequence[int]
) -> Vocabulary:
    """Return the vocabulary for matchers. added: added tokens, which may be special."""
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
