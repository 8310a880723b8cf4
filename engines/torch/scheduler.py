"""Which tokens the next forward pass computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from tandem.engines.torch.kv_cache import KVCache
from tandem.engines.torch.sequence import TorchSequence


class Scheduler:
    """Admits waiting calls in order of arrival and shares each step's tokens among the running.

    A call is admitted when the KV cache has blocks for all it may need; until then it and those
    behind it wait. A step takes the call that has waited longest, then all that are one step from
    an answer (decoding, verifying), then chunks of longer prompts, up to `max_batch_tokens`. Who
    got a turn goes to the back, so nobody starves.
    """

    def __init__(self, cache: KVCache, max_batch_tokens: int) -> None:
        self._cache = cache
        self._max_batch_tokens = max_batch_tokens
        self._waiting: deque[TorchSequence] = deque()
        self._running: list[TorchSequence] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def first_waiting(self) -> TorchSequence:
        return self._waiting[0]

    @property
    def calls(self) -> list[TorchSequence]:
        return [*self._running, *self._waiting]

    def add(self, sequence: TorchSequence) -> None:
        self._waiting.append(sequence)

    def admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            entry = self._cache.acquire(sequence.tokens, sequence.reusable, sequence.max_length)
            if entry is None:
                return
            sequence.entry = entry
            self._running.append(self._waiting.popleft())

    def in_the_way(self) -> Iterator[TorchSequence]:
        """Yield, to be ended at once, calls whose branches have blocks that others have got since.

        As many as it takes, the latest first.
        """
        for call in reversed(self.calls):
            if not self._cache.lent_too_much:
                return
            if call.entry and call.entry.lent_blocks:
                yield call

    def schedule(self) -> list[tuple[TorchSequence, int]]:
        budget = self._max_batch_tokens
        chosen: list[tuple[TorchSequence, int]] = []
        for sequence in self._by_urgency():
            count = _chunk(sequence, budget)
            if count:
                chosen.append((sequence, count))
                budget -= count
        served = {id(sequence) for sequence, _ in chosen}
        if len(served) < len(self._running):
            self._running.sort(key=lambda sequence: id(sequence) in served)
        return chosen

    def remove(self, sequence: TorchSequence, *, keep: bool) -> None:
        """Forget a call, which is over; `keep` leaves its keys and values for reuse.

        One that is over already stays so: its end may have failed behind this.
        """
        if sequence.over:
            return
        sequence.over = True
        if sequence.entry is None:
            self._waiting.remove(sequence)
            return
        self._running.remove(sequence)
        if keep:
            self._cache.release(sequence.entry)
        else:
            self._cache.drop(sequence.entry)

    def _by_urgency(self) -> Iterable[TorchSequence]:
        longest, others = self._running[:1], self._running[1:]
        return [*longest, *sorted(others, key=lambda s: s.pending > s.tail)]


def _chunk(sequence: TorchSequence, budget: int) -> int:
    """How many tokens of a call fit in `budget`; its tail is never split."""
    if sequence.pending <= budget:
        return sequence.pending
    return min(budget, sequence.pending - sequence.tail)
