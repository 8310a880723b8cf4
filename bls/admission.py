"""Who may decode now, and who waits.

Between two rounds a sequence's KV blocks are nobody's and can be evicted; with more sequences than
the caches hold, every round would be a prefill. So a sequence enters only while all contexts that
may grow meanwhile fit, in the order of arrival, and the queue is bounded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice

from bls.errors import Overloaded


class Ticket:
    """One sequence's place: how many KV blocks it may come to need, and what starts it.

    One that needs more than there are gets all of them: it decodes alone.
    """

    def __init__(self, blocks: int, start: Callable[[], None]) -> None:
        self.blocks = blocks
        self.start = start


class Admission:
    """Bounds the sequences that decode at once by number and by KV blocks.

    Thread-safe; ``Ticket.start`` is called without the lock held, by whoever made the room.
    """

    def __init__(self, *, max_running: int, max_waiting: int, kv_blocks: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._kv_blocks = kv_blocks
        self._free_blocks = kv_blocks
        self._running = 0
        self._waiting: deque[Ticket] = deque()
        self._lock = threading.Lock()

    @property
    def running(self) -> int:
        """Sequences that decode now."""
        return self._running

    @property
    def waiting(self) -> int:
        """Sequences that wait for room."""
        return len(self._waiting)

    @property
    def kv_reserved(self) -> float:
        """Share of the KV blocks that running sequences may come to need."""
        return 1 - self._free_blocks / self._kv_blocks if self._kv_blocks else 0.0

    def enter(self, tickets: Iterable[Ticket]) -> None:
        """Start each ticket now or when its turn comes; raise Overloaded if not all may wait."""
        tickets = list(tickets)
        for ticket in tickets:
            ticket.blocks = min(ticket.blocks, self._kv_blocks)
        with self._lock:
            queue = [*self._waiting, *tickets]
            if len(queue) - self._number_that_fit(queue) > self._max_waiting:
                raise Overloaded(
                    f"overloaded: {self._running} sequences are running and {len(self._waiting)} "
                    f"waiting, which is all the server takes; try again later"
                )
            self._waiting.extend(tickets)
        self._start_those_that_fit()

    def leave(self, ticket: Ticket) -> None:
        """Give a started ticket's room to those who wait."""
        with self._lock:
            self._running -= 1
            self._free_blocks += ticket.blocks
        self._start_those_that_fit()

    def withdraw(self, ticket: Ticket) -> bool:
        """Take a ticket out of the queue; False if it was started before."""
        with self._lock:
            if ticket not in self._waiting:
                return False
            self._waiting.remove(ticket)
        self._start_those_that_fit()
        return True

    def _start_those_that_fit(self) -> None:
        while (ticket := self._next()) is not None:
            ticket.start()

    def _number_that_fit(self, queue: Sequence[Ticket]) -> int:
        """How many tickets may start now. Nobody overtakes: a long prompt is not starved."""
        places = self._max_running - self._running
        needed = accumulate(ticket.blocks for ticket in queue[:places])
        return sum(blocks <= self._free_blocks for blocks in needed)

    def _next(self) -> Ticket | None:
        """Take the head of the queue if it fits."""
        with self._lock:
            if not self._number_that_fit([*islice(self._waiting, 1)]):
                return None
            ticket = self._waiting.popleft()
            self._running += 1
            self._free_blocks -= ticket.blocks
            return ticket
