"""Choose the tokens that the next forward pass computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from tandem.engines.stepping.kv_cache import KVCache, Owner
from tandem.engines.stepping.sequence import CallSequence


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
