"""The emulated engine: it answers in a synthetic language, with the timing set in its profile."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import logging
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from tandem.engines.decoding import check, check_kv_blocks, reject
from tandem.engines.emulated.call import EmulatedBranchingCall, EmulatedCall
from tandem.engines.emulated.language import Language
from tandem.engines.emulated.sampler import EmulatedSampler
from tandem.engines.emulated.settings import EmulatedSettings
from tandem.engines.engine import CallUsage, EngineRequest, Ids, Respond
from tandem.engines.errors import ClosingError, EngineError, RequestError
from tandem.engines.kinds import EMULATED

Action: TypeAlias = Callable[[], None]
_BYTES = 4  # per token


class Timer(Protocol):
    """Runs actions at given times, in nanoseconds of its own clock."""

    def now_ns(self) -> int: ...

    def wall_ns(self) -> int:
        """Return the time of the system clock in nanoseconds."""

    def at(self, due_ns: int, action: Action) -> None:
        """Run `action` at the given time, or as soon as possible afterwards."""

    def close(self) -> None:
        """Drop all pending actions and run no more."""


class WallTimer:
    """Real time, kept by one thread to about 0.1 ms on an idle machine.

    A sleeping thread wakes up about 0.1 ms late, especially in a virtual machine, and an action
    takes about as long. So this thread wakes up earlier. Spinning would be more exact, but would
    take cores from other processes.
    """

    _EARLY_NS = 150_000

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[tuple[int, int, Action]] = []
        self._order = itertools.count()  # orders events with equal times
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="emulated-steps", daemon=True)
        self._thread.start()

    @staticmethod
    def now_ns() -> int:
        return time.monotonic_ns()

    @staticmethod
    def wall_ns() -> int:
        return time.time_ns()

    def at(self, due_ns: int, action: Action) -> None:
        with self._changed:
            heapq.heappush(self._events, (due_ns, next(self._order), action))
            if self._events[0][2] is action:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        _sleep_precisely()
        while (action := self._next()) is not None:
            action()

    def _next(self) -> Action | None:
        """Wait until the next event is due, and remove it. Return None if the timer is closed."""
        with self._changed:
            while not self._closing:
                left_ns = None
                if self._events:
                    left_ns = self._events[0][0] - self._EARLY_NS - self.now_ns()
                    if left_ns <= 0:
                        return heapq.heappop(self._events)[2]
                self._changed.wait(left_ns and left_ns / 1e9)
            return None


def _sleep_precisely() -> None:
    """Turn off Linux's default timer slack of 0.05 ms for this thread."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, 1 ns


class PrefixCache:
    """The most recent texts within a token limit. The least recently used text is evicted first.

    Running calls use no capacity, so they never wait for it. Thread-safe.
    """

    def __init__(self, max_tokens: int, block_tokens: int) -> None:
        self._block = block_tokens
        self._total_blocks = max_tokens // block_tokens
        # Sorted as bytes: the text with the longest common prefix is always a neighbor.
        self._in_order: list[bytes] = []
        self._copies: dict[bytes, int] = {}  # count of each text, least recently used first
        self._used_blocks = 0
        self._lock = threading.Lock()

    def reuse(self, ids: Ids, reusable: int) -> int:
        """Return how many of the first `reusable` tokens of ids [n] are cached.

        A text that the call continues is removed from the cache. `remember` adds it again.
        """
        wanted = ids[:reusable].tobytes()
        with self._lock:
            place = bisect_left(self._in_order, wanted)
            neighbors = self._in_order[max(0, place - 1) : place + 1]
            shared, text = max(
                ((_shared_tokens(text, wanted), text) for text in neighbors), default=(0, b"")
            )
            if shared and len(text) // _BYTES - shared <= self._block:
                self._forget_one(text)
            return shared

    def remember(self, ids: Ids) -> None:
        """Store a text [n]. Each call that ends with this text adds one copy."""
        text = ids.tobytes()
        with self._lock:
            copies = self._copies.pop(text, 0)
            if not copies:
                insort(self._in_order, text)
            self._copies[text] = copies + 1
            self._used_blocks += self._blocks_of(text)
            while self._used_blocks > self._total_blocks:
                self._forget_one(next(iter(self._copies)))

    def _forget_one(self, text: bytes) -> None:
        self._copies[text] -= 1
        if not self._copies[text]:
            del self._copies[text]
            del self._in_order[bisect_left(self._in_order, text)]
        self._used_blocks -= self._blocks_of(text)

    def _blocks_of(self, text: bytes) -> int:
        return -(-len(text) // (_BYTES * self._block))


def _shared_tokens(one: bytes, other: bytes) -> int:
    n = min(len(one), len(other)) // _BYTES
    differs = np.frombuffer(one, np.int32, n) != np.frombuffer(other, np.int32, n)
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


MS = 1_000_000  # nanoseconds
log = logging.getLogger(__name__)


class EmulatedEngine:
    """Waits instead of computing; see `engines.engine.Engine`.

    Calls share steps, as with in-flight batching: a call joins when the running step ends, or
    begins at its arrival if the engine is idle. If steps take no time, a call is answered within
    `submit`, in the caller's thread.
    """

    capabilities = EMULATED

    def __init__(self, settings: EmulatedSettings, timer: Timer) -> None:
        """Start the engine. `close` also closes `timer`."""
        self._settings = settings
        self._timer = timer
        self._language = Language(settings)
        self._target_language = Language(replace(settings, role="target"))
        self._cache = PrefixCache(settings.kv_cache_tokens, settings.kv_block_tokens)
        self._takes_time = settings.step_ms > 0 or settings.prefill_ms_per_token > 0
        self._calls: dict[EmulatedCall, None] = {}  # in the order of their arrival
        self._lock = threading.Lock()
        self._stepping = False
        self._free_ns = 0  # end of the last step
        self._closing = False
        self.computed_tokens = 0

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        now_ns, wall_ns = self._timer.now_ns(), self._timer.wall_ns()
        age_ns = max(0, wall_ns - (request.arrival_time_ns or wall_ns))
        begin_ns = now_ns - age_ns
        check(request, self._settings, self._settings.vocab_size)
        _check_emulated(request)
        check_kv_blocks(request, self._settings.kv_cache_tokens, self._settings.kv_block_tokens)
        call = self._admit(request, respond, begin_ns, wall_ns - age_ns)
        call.prepare()
        with self._lock:
            if self._closing:
                raise ClosingError
            self._calls[call] = None
            if self._takes_time:
                if not self._stepping:
                    self._begin_step()
                return
        while call.open:
            self._end_step([call], begin_ns)

    def stop(self, request_id: str) -> None:
        for call in self._open_calls():
            if call.request.request_id == request_id:
                with call.lock:
                    if call.open:
                        call.stop()
                        self._answer(call)

    def close(self) -> None:
        with self._lock:
            self._closing = True
        for call in self._open_calls():
            self._fail(call, ClosingError())
        self._timer.close()

    def _admit(
        self, request: EngineRequest, respond: Respond, begin_ns: int, begin_wall_ns: int
    ) -> EmulatedCall:
        """Return a new call.

        begin_ns: when it arrived, in timer time. begin_wall_ns: the same instant in system time.
        """
        settings, length = self._settings, len(request.input_ids)
        reused = self._cache.reuse(_salted(request.input_ids, request), length - 1)
        whole = reused // settings.kv_block_tokens
        usage = CallUsage(
            reused_blocks=whole,
            new_blocks=-(-request.max_length // settings.kv_block_tokens) - whole,
            computed_tokens=length - reused,
            first_scheduled_time_ns=begin_wall_ns,
        )
        if not request.branches:
            sampler = EmulatedSampler(request, self._language)
            return EmulatedCall(request, respond, sampler, usage, begin_ns=begin_ns)
        languages = self._language, self._target_language
        room = settings.kv_cache_tokens
        return EmulatedBranchingCall(
            request, respond, languages, usage, max_tokens=room, begin_ns=begin_ns
        )

    def _begin_step(self) -> None:
        """Begin a step at the end of the last one, or when the next call arrives. Hold the lock."""
        self._stepping = bool(self._calls)
        if self._stepping:
            begin_ns = max(self._free_ns, min(call.begin_ns for call in self._calls))
            batch = [call for call in self._calls if call.begin_ns <= begin_ns]
            for call in batch:
                call.begin_step(begin_ns)
            end_ns = begin_ns + self._step_ns(batch)
            self._timer.at(end_ns, partial(self._run_step, batch, end_ns))

    def _step_ns(self, batch: list[EmulatedCall]) -> int:
        settings = self._settings
        drafts = sum(len(call.request.draft_ids) for call in batch)
        more_rows = sum(call.rows - 1 for call in batch)
        slope = settings.verify_slope * drafts + settings.branch_slope * more_rows
        slope += settings.batch_slope * (len(batch) - 1)
        prefill_ms = settings.prefill_ms_per_token * sum(call.prefill_tokens for call in batch)
        return round((settings.step_ms * (1 + slope) + prefill_ms) * MS)

    def _run_step(self, batch: list[EmulatedCall], end_ns: int) -> None:
        self._end_step(batch, end_ns)
        with self._lock:
            self._free_ns = end_ns
            self._begin_step()

    def _end_step(self, batch: list[EmulatedCall], end_ns: int) -> None:
        """Send the answers that are due, and prepare the next ones."""
        for call in batch:
            with call.lock:
                if call.open:
                    call.end_step(end_ns)
                    if call.due:
                        self._answer(call)
                        self._prepare_next(call)

    def _prepare_next(self, call: EmulatedCall) -> None:
        if call.open:
            try:
                call.prepare()
            except RequestError as error:
                self._fail(call, error)
            except Exception as error:
                log.exception("an engine step failed")
                self._fail(call, EngineError(f"the engine failed: {type(error).__name__}"))

    def _answer(self, call: EmulatedCall) -> None:
        """Send the prepared answer last, because its receiver may send the next call at once."""
        if call.over:
            self._cache.remember(_salted(call.cached_text, call.request))
            self._forget(call)
        call.answer(self._timer.now_ns())
        if not call.open:
            self._forget(call)

    def _fail(self, call: EmulatedCall, error: EngineError) -> None:
        with call.lock:
            if call.open:
                call.fail(error)
                self._forget(call)

    def _forget(self, call: EmulatedCall) -> None:
        with self._lock:
            if call in self._calls:
                del self._calls[call]
                self.computed_tokens += call.computed_tokens

    def _open_calls(self) -> list[EmulatedCall]:
        with self._lock:
            return list(self._calls)


def _salted(ids: Ids, request: EngineRequest) -> Ids:
    """Return numbers that calls with another cache salt don't share."""
    return ids ^ np.array(request.cache_salt, np.uint64).astype(np.int32)


def _check_emulated(request: EngineRequest) -> None:
    """Raise UnsupportedError for inputs that would change the output of a real engine."""
    sampling = request.sampling
    rejected = {
        "repetition_penalty": sampling.repetition_penalty != 1,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "embedding_bias": sampling.embedding_bias is not None,
        "num_top_log_probs": request.num_top_log_probs > 0,
        "return_prompt_log_probs": request.return_prompt_log_probs,
        "return_context_logits": request.return_context_logits,
    }
    reject(rejected, "by the emulated engine; omit it")
