"""Which sequences may decode now, and which wait.

Between two rounds a sequence's KV blocks are nobody's and can be evicted; with more sequences than
the target's cache holds, every round would be a prefill. So a sequence enters only while all
contexts that may grow meanwhile fit, in the order of arrival, and the queue is bounded.

The draft's cache is reserved apart, and nobody waits for it: a draft costs no text, only speed. A
sequence for which it has no blocks decodes by the target alone until it has, and one that needs
more than all of it always does.

Where several loops serve the entry, all of this holds for their sequences together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, takewhile

from tandem.bls.admission.other_loops import LoopUsage, OtherLoops
from tandem.bls.drafters.drafter import DrafterHealth
from tandem.bls.errors import BadRequest, EngineCallError, EngineRefused, Overloaded
from tandem.bls.request import Request
from tandem.bls.settings import LoopSettings


class Reservation:
    """One sequence's reservation: the KV blocks that it may come to need, and what starts it.

    One that needs more of the target's than there are gets all of them: it decodes alone.
    drafts: whether it has its blocks in the draft's cache. entered: when it entered the queue, in
    ns of the monotonic clock.
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
        self.drafts = False
        self.entered = 0


class Admission:
    """Bounds the sequences that decode at once by number and by KV blocks.

    Thread-safe; ``Reservation.start`` is called without the lock held, by the thread that freed the
    slot.
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
        self._others = LoopUsage()  # what the other loops took at the last look
        self._blocks = 0
        self._draft_blocks = 0
        self._arriving = 0
        self._running: dict[Reservation, None] = {}  # in the order of their start
        self._waiting: deque[Reservation] = deque()
        self._lock = threading.Lock()

    @property
    def running(self) -> int:
        """Sequences of this loop that decode now."""
        return len(self._running)

    @property
    def running_in_all_loops(self) -> int:
        """Sequences that decode now; those of other loops as of the last look."""
        return self.running + self._others.running

    @property
    def waiting(self) -> int:
        """Sequences of this loop that wait to be tokenized, or for KV blocks."""
        return self._arriving + len(self._waiting)

    @property
    def kv_reserved(self) -> float:
        """Share of the target's KV blocks that this loop's running sequences may come to need."""
        return self._blocks / self._kv_blocks if self._kv_blocks else 0.0

    def reserve(self, count: int) -> ReservedSlots:
        """Reserve queue slots for the sequences of one request, whose lengths are not known yet.

        Raises Overloaded where they would find the queue full, and BadRequest where that is so
        however idle the server is.
        """
        most = self._max_running + self._max_waiting
        if count > most:
            raise self._never(count, most)
        with self._exclusively():
            waiting = len(self._waiting) + self._others.waiting
            arriving = self._arriving + self._others.arriving + count
            # Behind somebody who waits, one waits; else as many may run as there are slots.
            slots = 0 if waiting else self._free_slots
            if waiting + arriving > self._max_waiting + slots:
                raise self._overloaded()
            self._arriving += count
        return ReservedSlots(self, count)

    def leave(self, reservation: Reservation) -> None:
        """Release a running sequence's blocks to those that wait, for the target or for drafts."""
        with self._exclusively():
            del self._running[reservation]
            self._blocks -= reservation.blocks
            if reservation.drafts:
                reservation.drafts = False
                self._draft_blocks -= reservation.draft_blocks
            started = self._take_those_that_fit()
        _start(started)
        self._call_others()

    def withdraw(self, reservation: Reservation) -> bool:
        """Take a reservation out of the queue; False if it was started before."""
        with self._exclusively():
            if reservation not in self._waiting:
                return False
            self._waiting.remove(reservation)
            started = self._take_those_that_fit()
        _start(started)
        self._call_others()
        return True

    def look(self) -> None:
        """Start what may start now: another loop has released something."""
        with self._exclusively():
            started = self._take_those_that_fit()
        _start(started)
        if started:  # it was their turn, perhaps, before that of others
            self._call_others()

    def _enter(self, reservations: Sequence[Reservation]) -> None:
        """Start each sequence now or when its turn comes; raise Overloaded if not all may wait."""
        for reservation in reservations:
            reservation.blocks = min(reservation.blocks, self._kv_blocks)
        with self._exclusively():
            self._arriving -= len(reservations)
            most = self._max_waiting + _number_that_fit(
                reservations, self._max_running, self._kv_blocks
            )
            if len(reservations) > most:
                raise self._never(len(reservations), most)
            for reservation in reservations:
                reservation.entered = time.monotonic_ns()
            queue = [*self._waiting, *reservations]
            waiting = len(queue) - self._number_that_fit(queue) + self._others.waiting
            if waiting > self._max_waiting:
                raise self._overloaded()
            self._waiting.extend(reservations)
            started = self._take_those_that_fit()
        _start(started)

    def _give_back(self, count: int) -> None:
        with self._exclusively():
            self._arriving -= count

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Keep every other thread out, and every other loop; know what these take."""
        with self._lock, self._other_loops.exclusively():
            self._others = self._other_loops.usage()
            try:
                yield
            finally:
                self._other_loops.note(self._usage)

    @property
    def _usage(self) -> LoopUsage:
        return LoopUsage(
            running=len(self._running),
            arriving=self._arriving,
            waiting=len(self._waiting),
            blocks=self._blocks,
            draft_blocks=self._draft_blocks,
            first=self._waiting[0].entered if self._waiting else 0,
        )

    @property
    def _free_slots(self) -> int:
        return self._max_running - len(self._running) - self._others.running

    def _call_others(self) -> None:
        """Let those who wait in other loops have what was released here."""
        if self._others.waiting or self._others.running:  # who runs may wait for draft blocks
            self._other_loops.call()

    def _number_that_fit(self, queue: Iterable[Reservation]) -> int:
        """How many sequences of a queue may start now: none before who entered another loop's."""
        first = self._others.first
        in_turn = [*takewhile(lambda waiting: not first or waiting.entered < first, queue)]
        free_blocks = self._kv_blocks - self._blocks - self._others.blocks
        return _number_that_fit(in_turn, max(0, self._free_slots), free_blocks)

    def _take_those_that_fit(self) -> list[Reservation]:
        """Count those at the head of the queue as running that fit; they are to be started."""
        for running in self._running:
            self._let_draft(running)
        taken = [self._waiting.popleft() for _ in range(self._number_that_fit(self._waiting))]
        for reservation in taken:
            self._running[reservation] = None
            self._blocks += reservation.blocks
            self._let_draft(reservation)
        return taken

    def _let_draft(self, reservation: Reservation) -> None:
        """Give a running sequence its blocks in the draft's cache, if they are free."""
        free = self._draft_kv_blocks - self._draft_blocks - self._others.draft_blocks
        if not reservation.drafts and 0 < reservation.draft_blocks <= free:
            reservation.drafts = True
            self._draft_blocks += reservation.draft_blocks

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"{self.running + self._others.running} sequences are running and "
            f"{self.waiting + self._others.arriving + self._others.waiting} waiting, which is all "
            "the server takes; try again later"
        )

    @staticmethod
    def _never(count: int, most: int) -> BadRequest:
        return BadRequest(
            f"the request has {count} prompts, of which at most {most} can run and wait here at "
            "once; send fewer in a request"
        )


class ReservedSlots:
    """The queue slots of one request's sequences, until their lengths are known."""

    def __init__(self, admission: Admission, count: int) -> None:
        self._admission = admission
        self._count = count
        self._taken = False
        self._lock = threading.Lock()

    def enter(self, reservations: Sequence[Reservation]) -> None:
        """Put a reservation in each slot; raise Overloaded if not all may wait.

        Nothing happens if the slots were given back meanwhile.
        """
        if self._take():
            self._admission._enter(reservations)

    def give_back(self) -> None:
        """Release the slots, unless reservations took them."""
        if self._take():
            self._admission._give_back(self._count)

    def _take(self) -> bool:
        with self._lock:
            taken, self._taken = self._taken, True
        return not taken


class DraftKvAvailability:
    """The draft model's health for one sequence, which also needs blocks in the draft's cache."""

    def __init__(self, reservation: Reservation, health: DrafterHealth) -> None:
        self._reservation = reservation
        self._health = health

    @property
    def available(self) -> bool:
        """Whether the draft model may be asked."""
        return self._reservation.drafts and self._health.available

    def failed(self, error: EngineCallError) -> None:
        """Let the draft model rest."""
        self._health.failed(error)

    def refused(self, error: EngineRefused) -> None:
        """Note that it refused this sequence's call."""
        self._health.refused(error)


def blocks_of(request: Request, settings: LoopSettings) -> tuple[int, int]:
    """Return the KV blocks that a request may come to need in the target, and in the draft."""
    tokens = len(request.prompt_ids) + request.max_tokens + request.longest_draft
    draft = settings.draft if request.kind.samples_from_draft_model else None
    draft_blocks = draft.kv_blocks_of(min(tokens, draft.max_seq_len)) if draft else 0
    return settings.target.kv_blocks_of(tokens), draft_blocks


def _number_that_fit(queue: Sequence[Reservation], slots: int, blocks: int) -> int:
    """How many may start. They start in order, so a long prompt is not starved."""
    needed = accumulate(reservation.blocks for reservation in queue[:slots])
    return sum(so_far <= blocks for so_far in needed)


def _start(reservations: Iterable[Reservation]) -> None:
    for reservation in reservations:
        reservation.start()
