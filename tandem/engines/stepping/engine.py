"""An engine with one thread that owns the model and serves many calls concurrently."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.contract.engine import Capabilities
from tandem.contract.errors import ErrorCode
from tandem.contract.heap import trim_heap
from tandem.engines.decoding import check, check_kv_blocks
from tandem.engines.engine import EngineRequest, Floats, Respond
from tandem.engines.errors import ClosingError, RequestError, first_line
from tandem.engines.stepping.branching import BranchingSequence
from tandem.engines.stepping.kv_cache import KVCache, Owner, Packed
from tandem.engines.stepping.sampling import CallSampler
from tandem.engines.stepping.sequence import CallSequence
from tandem.engines.stepping.settings import StepSettings

log = logging.getLogger(__name__)


class Scheduler:
    """Admits waiting calls in order of arrival, and shares each step's tokens among running calls.

    A call is admitted when the KV cache has enough blocks for all of its tokens. Until then, later
    calls also wait. A step serves, up to `max_batch_tokens` tokens:

    - first the call that has waited longest
    - then all calls that are one step from an answer (decoding, verifying)
    - then chunks of longer prompts

    Served calls move to the end of the queue.
    """

    def __init__(self, cache: KVCache[Any], max_batch_tokens: int) -> None:
        self._cache = cache
        self._max_batch_tokens = max_batch_tokens
        self.waiting: deque[CallSequence] = deque()  # in order of admission
        self.running: list[CallSequence] = []

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    @property
    def calls(self) -> list[CallSequence]:
        return [*self.running, *self.waiting]

    def admit(self) -> None:
        while self.waiting:
            sequence = self.waiting[0]
            entry = self._cache.acquire(
                sequence.tokens,
                sequence.reusable,
                sequence.request.max_length,
                Owner(sequence.request.lora_task_id, sequence.request.cache_salt),
            )
            if entry is None:
                return
            sequence.entry = entry
            self.running.append(self.waiting.popleft())

    def preempted(self) -> Iterator[CallSequence]:
        """Yield calls to end now, latest first, because others need their branches' blocks."""
        if not self.waiting:
            return
        needed = self.waiting[0].request.max_length
        for call in reversed(self.running):
            if not self._cache.needs_lent_blocks(needed):
                return
            if call.entry and call.entry.lent_blocks:
                yield call

    def schedule(self) -> list[tuple[CallSequence, int]]:
        budget = self._max_batch_tokens
        chosen: list[tuple[CallSequence, int]] = []
        first, others = self.running[:1], self.running[1:]
        short = [sequence for sequence in others if sequence.pending <= sequence.tail]
        long = [sequence for sequence in others if sequence.pending > sequence.tail]
        for sequence in [*first, *short, *long]:
            count = sequence.pending
            if count > budget:  # the call gets a chunk that doesn't split its tail
                count = min(budget, count - sequence.tail)
            if count:
                chosen.append((sequence, count))
                budget -= count
        served = [sequence for sequence, _ in chosen]
        if len(served) < len(self.running):
            unserved = [sequence for sequence in self.running if sequence not in served]
            self.running = [*unserved, *(s for s in self.running if s in served)]
        return chosen

    def remove(self, sequence: CallSequence, *, keep: bool) -> None:
        """Remove a call. May be repeated. keep: whether to keep its keys and values for reuse."""
        if sequence.over:
            return
        sequence.over = True
        if sequence.entry is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        if keep:
            self._cache.release(sequence.entry)
        else:
            self._cache.drop(sequence.entry)


class StepModel(Protocol):
    """A loaded model. Only the engine's thread uses it.

    Attributes:
        vocab_size: width of the model's logits.
        cache: keys and values of past tokens.

    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def cache(self) -> KVCache[Any]: ...

    def forward(self, ids: NDArray[np.int64], segments: Sequence[Packed]) -> Floats:
        """Run the segments' tokens, ids [all tokens]. Return logits [all rows, vocab_size].

        The next pass may overwrite them.
        """


class SteppingEngine:
    """Serves a model that runs in steps; see `engines.engine.Engine`."""

    def __init__(
        self, settings: StepSettings, capabilities: Capabilities, load: Callable[[], StepModel]
    ) -> None:
        """Start the engine. Raises what `load` raises.

        load: makes the model, in the engine's thread.
        """
        self.capabilities = capabilities
        self._settings = settings
        self._arrived: list[CallSequence] = []
        self._stops: set[str] = set()
        self._closing = False
        self._wake = threading.Condition()
        self.computed_tokens = 0
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(load, ready), name="engine", daemon=True
        )
        self._thread.start()
        ready.result()

    def submit(self, request: EngineRequest, respond: Respond) -> None:
        settings = self._settings
        check(
            request,
            settings,
            self._model.vocab_size,
            settings.draft_vocab_size,
            len(settings.lora_adapters),
        )
        check_kv_blocks(request, settings.kv_cache_tokens, settings.kv_block_tokens)
        sequence = self._make_sequence(request, respond)
        with self._wake:
            if self._closing:
                raise ClosingError
            self._arrived.append(sequence)
            self._wake.notify()

    def stop(self, request_id: str) -> None:
        with self._wake:
            self._stops.add(request_id)
            self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _make_sequence(self, request: EngineRequest, respond: Respond) -> CallSequence:
        sampler = CallSampler(request, self._model.vocab_size)
        if not request.branches:
            return CallSequence(request, respond, sampler)
        max_tokens = self._settings.max_batch_tokens
        if len(request.draft_ids) >= max_tokens:
            raise RequestError(
                f"draft_input_ids has {len(request.draft_ids)} tokens; the limit with "
                f"branch_counts is {max_tokens - 1} (max_batch_tokens)",
                "draft_input_ids",
            )
        return BranchingSequence(request, respond, sampler, self._cache, max_tokens // 2)

    def _run(self, load: Callable[[], StepModel], ready: Future[None]) -> None:
        """Load the model, then serve until closed.

        One thread does everything. A second computing thread would have its own OpenMP threads.
        With more threads than cores, OpenMP puts threads to sleep between operations.
        """
        try:
            self._model = load()
            self._cache = self._model.cache
            self._scheduler = Scheduler(self._cache, self._settings.max_batch_tokens)
            trim_heap()  # loading has freed about as much memory as the model needs
        except Exception as error:  # noqa: BLE001 (reraised in the waiting thread)
            ready.set_exception(error)
            return
        ready.set_result(None)
        while self._receive():
            try:
                self._step()
            except Exception as error:
                log.exception("an engine step failed")
                self._fail_all(f"the engine failed: {first_line(error)}")
        closing = ClosingError()
        self._fail_all(str(closing), closing.code)

    def _receive(self) -> bool:
        """Wait for work, then take new calls and stops. Return False if the engine is closing."""
        with self._wake:
            while not (self._arrived or self._stops or self._closing or len(self._scheduler)):
                self._wake.wait()
            arrived, self._arrived = self._arrived, []
            stops, self._stops = self._stops, set()
            closing = self._closing
        for sequence in arrived:
            self._scheduler.waiting.append(sequence)
        for sequence in self._scheduler.calls if stops else ():
            if sequence.request.request_id in stops:
                self._finish_early(sequence)
        return not closing

    def _step(self) -> None:
        self._admit()
        for sequence in self._scheduler.preempted():
            self._finish_early(sequence)
        chosen = self._scheduler.schedule()
        if not chosen:
            return
        segments = [sequence.segment(count) for sequence, count in chosen]
        ids = np.concatenate([sequence.next_tokens(count) for sequence, count in chosen])
        try:
            logits = self._model.forward(ids, segments)
        except Exception as error:
            log.exception("a forward pass failed")
            for sequence, _ in chosen:
                self._fail(sequence, f"the model failed: {first_line(error)}")
            return
        self.computed_tokens += len(ids)
        end = 0
        for (sequence, count), segment in zip(chosen, segments, strict=True):
            start, end = end, end + segment.rows
            sequence.mark_computed(count)
            self._advance(sequence, count, logits[start:end])

    def _admit(self) -> None:
        """Admit waiting calls. If memory runs out for one call, only that call fails."""
        while True:
            try:
                return self._scheduler.admit()
            except Exception as error:
                log.exception("failed to admit a call")
                message = f"the engine can't allocate its KV cache: {first_line(error)}"
                self._fail(self._scheduler.waiting[0], message)

    def _advance(self, sequence: CallSequence, count: int, logits: Floats) -> None:
        try:
            if sequence.wants_all_rows:
                sequence.keep_context(logits, sequence.computed - count)
            if sequence.pending == 0 and sequence.advance(logits):
                self._scheduler.remove(sequence, keep=True)
        except RequestError as error:
            self._fail(sequence, str(error), error.code)
        except Exception as error:
            log.exception("sampling failed")
            self._fail(sequence, f"sampling failed: {first_line(error)}")

    def _finish_early(self, sequence: CallSequence) -> None:
        """Send the final answer of a stopped call."""
        try:
            self._scheduler.remove(sequence, keep=True)
            sequence.answer(final=True)
        except Exception as error:
            log.exception("failed to end a call")
            self._fail(sequence, f"the engine failed to end the call: {first_line(error)}")

    def _fail(self, sequence: CallSequence, error: str, code: ErrorCode = "INTERNAL") -> None:
        self._scheduler.remove(sequence, keep=False)
        sequence.fail(error, code)

    def _fail_all(self, error: str, code: ErrorCode = "INTERNAL") -> None:
        for sequence in self._scheduler.calls:
            self._fail(sequence, error, code)
