"""A clock that tests advance."""

from __future__ import annotations

import heapq
import itertools

from tandem.engines.emulated.engine import Action


class VirtualTimer:
    """A clock that only `advance`, `run_ns` and `pass_ns` move, for exact simulations."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._events: list[tuple[int, int, Action]] = []
        self._order = itertools.count()

    def now_ns(self) -> int:
        return self._now_ns

    wall_ns = now_ns

    def at(self, due_ns: int, action: Action) -> None:
        heapq.heappush(self._events, (due_ns, next(self._order), action))

    def advance(self) -> None:
        due_ns, _, action = heapq.heappop(self._events)
        self._now_ns = max(self._now_ns, due_ns)
        action()

    def run_ns(self, duration_ns: int) -> None:
        """Let time pass and run the actions that are due by then."""
        end_ns = self._now_ns + duration_ns
        while self._events and self._events[0][0] <= end_ns:
            self.advance()
        self._now_ns = end_ns

    def pass_ns(self, duration_ns: int) -> None:
        """Let time pass without running actions, as on a busy machine."""
        self._now_ns += duration_ns

    def close(self) -> None:
        self._events.clear()
