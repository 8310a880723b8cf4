"""Admission control: decide which sequences decode now and which wait.

Between rounds, no engine call is in flight for a sequence, so its KV blocks can be evicted. With
more running sequences than the target's cache holds, every round would need another prefill. So a
sequence starts only if all running contexts fit at their full length. Sequences start in the
order in which they enter the queue, which is bounded.

Blocks in the draft engine's cache are reserved separately, and no sequence waits for them. A
sequence without draft blocks decodes with the target alone until enough blocks are free. A sequence
that needs more blocks than the draft engine's cache holds never uses the draft model.

If several loops serve the entry, they share the limits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, takewhile

from tandem.bls.admission.other_loops import LoopUsage, OtherLoops
from tandem.bls.errors import BadRequest, Overloaded
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings


class Reservation:
    """The KV blocks that a sequence may need, and the function that starts it.

    A sequence that needs more blocks than the target's cache holds reserves the entire cache and
    runs by itself. has_draft_blocks: whether the sequence has reserved its blocks in the draft
    engine's cache. queued_at: time at which the sequence entered the queue, in ns of the monotonic
    clock.
    """

    def __init__(
        self,
        blocks: int,
        draft_blocks: int = 0,
        start: Callable[[], None] = lambda: None,
    ) -> None:
        self.blocks = blocks
        self.draft_blocks = draft_blocks
        self.start = start
        self.has_draft_blocks = False
        self.queued_at = 0

    @classmethod
    def for_request(cls, request: Request, settings: LoopSettings) -> Reservation:
        """Reserve enough for the prompt, the longest output, and the longest draft."""
        tokens = len(request.prompt_ids) + request.max_tokens + request.longest_draft
        draft = settings.draft if request.drafter_kind.samples_from_draft_model else None
        draft_blocks = draft.kv_blocks_for(min(tokens, draft.max_seq_len)) if draft else 0
        return cls(settings.target.kv_blocks_for(tokens), draft_blocks)


class Admission:
    """Limits the running sequences by number and by KV blocks.

    Thread-safe. The thread that frees a slot calls ``Reservation.start`` without holding the lock.
    """

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        kv_blocks: int,
        draft_kv_blocks: int = 0,
        other_loops: OtherLoops | None = None,
    ) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._kv_blocks = kv_blocks
        self._draft_kv_blocks = draft_kv_blocks
        self._other_loops = other_loops or OtherLoops()
        self._others = LoopUsage()  # updated whenever the lock is taken
        self._blocks = 0
        self._draft_blocks = 0
        self._arriving = 0
        self._running: dict[Reservation, None] = {}  # ordered by start time
        self._queue: deque[Reservation] = deque()
        self._lock = threading.Lock()

    @property
    def running(self) -> int:
        """Number of this loop's sequences that are decoding."""
        return len(self._running)

    @property
    def load(self) -> int:
        """Number of sequences in all loops that are decoding or about to start.

        The other loops' numbers may be outdated.
        """
        others = self._others
        admitted = self.running + self._arriving + others.running + others.arriving
        return min(admitted, self._max_running)

    @property
    def waiting(self) -> int:
        """Number of this loop's sequences that have arrived but don't decode yet."""
        return self._arriving + len(self._queue)

    @property
    def kv_reserved(self) -> float:
        """Fraction of the target's KV blocks that is reserved for this loop's sequences."""
        return self._blocks / self._kv_blocks if self._kv_blocks else 0.0

    def arrive(self, count: int) -> Arrivals:
        """Accept the sequences of one request, before their lengths are known.

        Raises Overloaded if the queue is full, and BadRequest if the request has more sequences
        than an idle server can hold.
        """
        limit = self._max_running + self._max_waiting
        if count > limit:
            raise self._too_many_prompts(count, limit)
        with self._exclusive_lock():
            queued = len(self._queue) + self._others.queued
            arriving = self._arriving + self._others.arriving + count
            # Free slots don't help a new request if there is a queue, because the queue goes first.
            slots = 0 if queued else self._free_slots
            if queued + arriving > self._max_waiting + slots:
                raise self._overload_error()
            self._arriving += count
        return Arrivals(self, count)

    def release(self, reservation: Reservation) -> None:
        """Release the blocks of a running sequence."""
        with self._admit_on_exit():
            del self._running[reservation]
            self._blocks -= reservation.blocks
            if reservation.has_draft_blocks:
                reservation.has_draft_blocks = False
                self._draft_blocks -= reservation.draft_blocks
        self._notify_others()

    def remove_waiting(self, reservation: Reservation) -> bool:
        """Remove a reservation from the queue. Return False if its sequence isn't waiting."""
        with self._admit_on_exit():
            if reservation not in self._queue:
                return False
            self._queue.remove(reservation)
        self._notify_others()
        return True

    def start_waiting(self) -> None:
        """Start the waiting sequences that fit. Call it after another loop released capacity."""
        with self._admit_on_exit() as started:
            pass
        if started:  # the next sequence in order of arrival may belong to another loop
            self._notify_others()

    def _enter(self, reservations: Sequence[Reservation]) -> None:
        """Start or queue each sequence; raise Overloaded if the queue is full."""
        for reservation in reservations:
            reservation.blocks = min(reservation.blocks, self._kv_blocks)
        with self._admit_on_exit():
            self._arriving -= len(reservations)
            fitting = _number_that_fit(reservations, self._max_running, self._kv_blocks)
            limit = self._max_waiting + fitting
            if len(reservations) > limit:
                raise self._too_many_prompts(len(reservations), limit)
            for reservation in reservations:
                reservation.queued_at = time.monotonic_ns()
            queue = [*self._queue, *reservations]
            queued = len(queue) - self._number_to_start(queue) + self._others.queued
            if queued > self._max_waiting:
                raise self._overload_error()
            self._queue.extend(reservations)

    def _leave(self, count: int) -> None:
        with self._exclusive_lock():
            self._arriving -= count

    @contextmanager
    def _exclusive_lock(self) -> Iterator[None]:
        """Lock out other threads and loops, read their usage, and publish this loop's usage."""
        with self._lock, self._other_loops.exclusive_lock():
            self._others = self._other_loops.usage()
            try:
                yield
            finally:
                self._other_loops.publish(self._usage)

    @contextmanager
    def _admit_on_exit(self) -> Iterator[list[Reservation]]:
        """Hold the lock during the context. At its end, admit the waiting sequences that fit.

        They start after the lock is released. Yields a list to which they are added.
        """
        started: list[Reservation] = []
        with self._exclusive_lock():
            yield started
            for running in self._running:
                self._try_reserve_draft_blocks(running)
            for _ in range(self._number_to_start(self._queue)):
                reservation = self._queue.popleft()
                self._running[reservation] = None
                self._blocks += reservation.blocks
                self._try_reserve_draft_blocks(reservation)
                started.append(reservation)
        for reservation in started:
            reservation.start()

    @property
    def _usage(self) -> LoopUsage:
        return LoopUsage(
            running=len(self._running),
            arriving=self._arriving,
            queued=len(self._queue),
            blocks=self._blocks,
            draft_blocks=self._draft_blocks,
            oldest_queued_at=self._queue[0].queued_at if self._queue else 0,
        )

    @property
    def _free_slots(self) -> int:
        """Number of sequences that may still start, if their KV blocks fit."""
        return self._max_running - len(self._running) - self._others.running

    def _notify_others(self) -> None:
        """Ask the other loops to check whether their sequences fit into the released capacity."""
        if self._others.queued or self._others.running:  # running sequences may need draft blocks
            self._other_loops.notify()

    def _number_to_start(self, queue: Iterable[Reservation]) -> int:
        """Return how many queued sequences may start now without overtaking other loops' queues."""
        first = self._others.oldest_queued_at
        in_turn = [*takewhile(lambda waiting: not first or waiting.queued_at < first, queue)]
        free_blocks = self._kv_blocks - self._blocks - self._others.blocks
        return _number_that_fit(in_turn, max(0, self._free_slots), free_blocks)

    def _try_reserve_draft_blocks(self, reservation: Reservation) -> None:
        """Reserve a running sequence's blocks in the draft's cache if enough are free."""
        free = self._draft_kv_blocks - self._draft_blocks - self._others.draft_blocks
        if not reservation.has_draft_blocks and 0 < reservation.draft_blocks <= free:
            reservation.has_draft_blocks = True
            self._draft_blocks += reservation.draft_blocks

    def _overload_error(self) -> Overloaded:
        return Overloaded(
            "the server is full: "
            f"{self.running + self._others.running} sequences are running and "
            f"{self.waiting + self._others.arriving + self._others.queued} are waiting; "
            "try again later"
        )

    @staticmethod
    def _too_many_prompts(count: int, limit: int) -> BadRequest:
        return BadRequest(
            f"the request has {count} prompts; the limit is {limit}; send fewer per request"
        )


class Arrivals:
    """The sequences of one request, from its arrival until their lengths are known."""

    def __init__(self, admission: Admission, count: int) -> None:
        self._admission = admission
        self._count = count
        self._ended = False
        self._lock = threading.Lock()

    def enter(self, reservations: Sequence[Reservation]) -> None:
        """Start or queue the sequences; raise Overloaded if the queue can't hold them all.

        Does nothing after ``leave``.
        """
        if self._end():
            self._admission._enter(reservations)

    def leave(self) -> None:
        """Stop counting the sequences as arriving. Does nothing after ``enter``."""
        if self._end():
            self._admission._leave(self._count)

    def _end(self) -> bool:
        """Return whether this is the first call."""
        with self._lock:
            ended, self._ended = self._ended, True
        return not ended


def _number_that_fit(queue: Sequence[Reservation], slots: int, blocks: int) -> int:
    """Return how many sequences may start.

    They start in order, so that short prompts can't starve a long one.
    """
    needed = accumulate(reservation.blocks for reservation in queue[:slots])
    return sum(so_far <= blocks for so_far in needed)
