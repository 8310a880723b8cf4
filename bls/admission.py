"""Admission control: decide which sequences decode now and which wait.

Between rounds, no engine call is in flight for a sequence, so its KV blocks can be evicted. With
more running sequences than the target's cache holds, every round would need another prefill. So a
sequence reserves blocks for its prompt and the next OUTPUT_TOKENS, and more as it grows. If no
blocks are free, or an older sequence waits for some, it gives its own back and waits, too. So the
oldest sequence goes on first, and no two wait for each other. The queue of new sequences is
bounded, and in order of turns. A turn is the time at which a sequence entered, plus ten seconds for
each level of its priority, so even the least urgent sequence starts before any that enters much
later.

Blocks in the draft engine's cache are reserved separately, and no sequence waits for them. A
sequence without draft blocks decodes with the target alone until enough blocks are free. A sequence
that needs more blocks than the draft engine's cache holds doesn't use the draft model.

Concurrent tokenizer calls are limited too. Waiting requests don't block a thread. Only a stream
that has started keeps the thread that sends its chunks.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from tandem.bls.costs import MAX_PLAIN_TOKENS
from tandem.bls.errors import BadRequest, Overloaded
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings

NS_PER_LEVEL = 10_000_000_000  # of priority
OUTPUT_TOKENS = 256  # reserved at a time: most chats are shorter


def blocks_for(
    request: Request, settings: LoopSettings, num_output_tokens: int = 0
) -> tuple[int, int]:
    """Return the blocks that a sequence needs to go on: the target's and the draft engine's.

    They hold the prompt, the output up to a multiple of OUTPUT_TOKENS, and the longest draft. If
    the engine drafts by itself, one call may decode the whole answer.
    """
    output = request.max_tokens
    if not request.drafter_kind.in_engine:
        next_end = num_output_tokens + MAX_PLAIN_TOKENS
        output = min(output, (next_end // OUTPUT_TOKENS + 1) * OUTPUT_TOKENS)
    tokens = len(request.prompt_ids) + output + request.longest_draft
    draft = settings.draft if request.drafter_kind.samples_from_draft_model else None
    draft_blocks = draft.kv_blocks_for(min(tokens, draft.max_seq_len)) if draft else 0
    return settings.target.kv_blocks_for(tokens), draft_blocks


class Reservation:
    """The KV blocks that a sequence needs, and the function that starts it or lets it go on.

    A sequence that needs more blocks than the target's cache holds reserves the entire cache and
    runs by itself. has_draft_blocks: whether the sequence has reserved its blocks in the draft
    engine's cache. turn: place in the queue, in ns of the monotonic clock.
    """

    def __init__(
        self,
        blocks: int,
        draft_blocks: int = 0,
        start: Callable[[], None] = lambda: None,
        priority: int = 0,
    ) -> None:
        self.blocks = blocks
        self.draft_blocks = draft_blocks
        self.start = start
        self.priority = priority
        self.has_draft_blocks = False
        self.turn = 0


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
    ) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._kv_blocks = kv_blocks
        self._draft_kv_blocks = draft_kv_blocks
        self._blocks = 0
        self._draft_blocks = 0
        self._arriving = 0
        self._running: dict[Reservation, None] = {}  # ordered by their last reservation
        self._queue: list[Reservation] = []  # in order of turns
        self._lock = threading.Lock()

    @property
    def running(self) -> int:
        """Number of sequences that are decoding."""
        return len(self._running)

    def load(self) -> int:
        """Return the number of sequences that are decoding or about to start."""
        return min(self.running + self._arriving, self._max_running)

    @property
    def waiting(self) -> int:
        """Number of sequences that wait to start or to go on."""
        return self._arriving + len(self._queue)

    @property
    def kv_reserved(self) -> float:
        """Fraction of the target's KV blocks that is reserved."""
        return self._blocks / self._kv_blocks if self._kv_blocks else 0.0

    def arrive(self, count: int) -> Arrivals:
        """Accept the sequences of one request, before their lengths are known.

        Raises Overloaded if the queue is full, and BadRequest if the request has more sequences
        than an idle server can hold.
        """
        limit = self._max_running + self._max_waiting
        if count > limit:
            raise self._too_many_prompts(count, limit)
        with self._lock:
            # Free slots don't help a new request if there is a queue, because the queue goes first.
            slots = 0 if self._queue else self._free_slots
            if self.waiting + count > self._max_waiting + slots:
                raise self._overload_error()
            self._arriving += count
        return Arrivals(self, count)

    def extend(self, reservation: Reservation, blocks: int, draft_blocks: int) -> bool:
        """Reserve more blocks for a running sequence. Return whether it may go on.

        Otherwise it waits without any blocks, and ``Reservation.start`` is called again.
        """
        blocks = min(blocks, self._kv_blocks)
        if blocks <= reservation.blocks:
            return True
        with self._admit_on_exit():
            # An older sequence may also wait for a place among the running ones.
            first, free = next(iter(self._queue), reservation), self._kv_blocks - self._blocks
            makes_way = first.turn < reservation.turn and first.blocks > free
            self._release(reservation)
            reservation.blocks, reservation.draft_blocks = blocks, draft_blocks
            if may_go_on := not makes_way and blocks <= self._kv_blocks - self._blocks:
                self._reserve(reservation)
            else:
                insort(self._queue, reservation, key=_turn)
        return may_go_on

    def release(self, reservation: Reservation) -> None:
        """Release the blocks of a sequence, if it has any."""
        with self._admit_on_exit():
            if reservation in self._running:
                self._release(reservation)

    def remove_waiting(self, reservation: Reservation) -> bool:
        """Remove a reservation from the queue. Return False if its sequence isn't waiting."""
        with self._admit_on_exit():
            if reservation not in self._queue:
                return False
            self._queue.remove(reservation)
        return True

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
                reservation.turn = time.monotonic_ns() + NS_PER_LEVEL * reservation.priority
            queue = sorted([*self._queue, *reservations], key=_turn)
            if len(queue) - self._number_to_start(queue) > self._max_waiting:
                raise self._overload_error()
            self._queue = queue

    def _leave(self, count: int) -> None:
        with self._lock:
            self._arriving -= count

    @contextmanager
    def _admit_on_exit(self) -> Iterator[None]:
        """Hold the lock during the context. At its end, admit the waiting sequences that fit.

        They start after the lock is released.
        """
        started: list[Reservation] = []
        with self._lock:
            yield
            for running in self._running:
                self._try_reserve_draft_blocks(running)
            for _ in range(self._number_to_start(self._queue)):
                reservation = self._queue.pop(0)
                self._reserve(reservation)
                started.append(reservation)
        for reservation in started:
            reservation.start()

    @property
    def _free_slots(self) -> int:
        """Number of sequences that may still start, if their KV blocks fit."""
        return self._max_running - len(self._running)

    def _number_to_start(self, queue: Sequence[Reservation]) -> int:
        """Return how many queued sequences may start now."""
        return _number_that_fit(queue, self._free_slots, self._kv_blocks - self._blocks)

    def _reserve(self, reservation: Reservation) -> None:
        self._running[reservation] = None
        self._blocks += reservation.blocks
        self._try_reserve_draft_blocks(reservation)

    def _release(self, reservation: Reservation) -> None:
        del self._running[reservation]
        self._blocks -= reservation.blocks
        if reservation.has_draft_blocks:
            self._draft_blocks -= reservation.draft_blocks
            reservation.has_draft_blocks = False

    def _try_reserve_draft_blocks(self, reservation: Reservation) -> None:
        """Reserve a running sequence's blocks in the draft's cache if enough are free."""
        free = self._draft_kv_blocks - self._draft_blocks
        if not reservation.has_draft_blocks and 0 < reservation.draft_blocks <= free:
            reservation.has_draft_blocks = True
            self._draft_blocks += reservation.draft_blocks

    def _overload_error(self) -> Overloaded:
        return Overloaded(
            f"the server is full: {self.running} sequences are running and {self.waiting} are "
            "waiting; try again later"
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


def _turn(reservation: Reservation) -> int:
    return reservation.turn


def _number_that_fit(queue: Sequence[Reservation], slots: int, blocks: int) -> int:
    """Return how many sequences may start.

    They start in order, so that short prompts can't starve a long one.
    """
    needed = accumulate(reservation.blocks for reservation in queue[:slots])
    return sum(so_far <= blocks for so_far in needed)


class ConcurrencyLimiter:
    """Issues a limited number of permits in order of arrival. Thread-safe.

    max_permits: maximum number of permits in use. max_waiting_bytes: limit on the total size of the
    waiting requests; a single request may always wait.
    """

    def __init__(self, max_permits: int, max_waiting_bytes: int) -> None:
        self._free = max_permits
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[Permit] = deque()
        self._waiting_bytes = 0
        self._lock = threading.Lock()

    def acquire(self, work: Callable[[Permit], None], size: int) -> Permit:
        """Call ``work`` now, or later from the thread that frees a permit.

        ``work`` must not block. size: number of bytes that the request holds while it waits. Raises
        Overloaded if the waiting requests would exceed ``max_waiting_bytes``.
        """
        permit = Permit(self, work, size)
        with self._lock:
            held = self._waiting_bytes + size
            if self._waiting and held > self._max_waiting_bytes:
                raise Overloaded(
                    f"{self._waiting_bytes} bytes of requests are waiting; the limit is "
                    f"{self._max_waiting_bytes}; try again later"
                )
            self._waiting.append(permit)
            self._waiting_bytes = held
        self._start_waiting()
        return permit

    def _start_waiting(self) -> None:
        while (permit := self._next()) is not None:
            permit.work(permit)

    def _next(self) -> Permit | None:
        with self._lock:
            if not self._waiting or not self._free:
                return None
            self._free -= 1
            permit = self._waiting.popleft()
            self._waiting_bytes -= permit.size
            return permit


class Permit:
    """A request's permit to use the resource, from the time it is queued until it ends."""

    def __init__(
        self, limiter: ConcurrencyLimiter, work: Callable[[Permit], None], size: int
    ) -> None:
        self.work = work
        self.size = size
        self._limiter = limiter
        self._released = False

    def leave_queue(self) -> None:
        """Leave the queue. Does nothing after the work has begun."""
        limiter = self._limiter
        with limiter._lock:
            if self in limiter._waiting:
                limiter._waiting.remove(self)
                limiter._waiting_bytes -= self.size

    def release(self) -> None:
        """Free the permit and start the next waiting request. A second call does nothing."""
        self.release_unused()
        self._limiter._start_waiting()

    def release_unused(self) -> None:
        """Free the permit from inside ``work`` if the work can't begin. Starts no other request."""
        with self._limiter._lock:
            self._limiter._free += not self._released
            self._released = True
