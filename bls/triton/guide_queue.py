"""Requests with new guides wait here until these are compiled."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tandem.bls.concurrency_limiter import ConcurrencyLimiter, Permit
from tandem.bls.request import Request
from tandem.bls.triton.background import in_background
from tandem.bls.triton.request_guides import RequestGuides
from tandem.bls.triton.request_state import RequestState, ending, give_up
from tandem.guides.errors import GuideTakesLong
from tandem.guides.matcher import GuideMatcher
from tandem.guides.trial import ATTEMPT_SECONDS, LAST_ATTEMPT

Matchers: TypeAlias = list[GuideMatcher | None]

# Guides compiled at once in each queue. Each keeps a core busy.
GUIDES_COMPILED = 1
# Of one request's turn. Guides that are left then wait with those that take longer.
TURN_SECONDS = 0.5


class GuideQueue:
    """Makes the matchers of requests, in a queue for each attempt at a guide.

    So those that take long wait for each other, and nobody waits long for them. max_waiting_bytes:
    bound on what those who wait hold, in each queue.
    """

    def __init__(self, guides: RequestGuides, max_waiting_bytes: int) -> None:
        self._guides = guides
        self._queues = [
            ConcurrencyLimiter(GUIDES_COMPILED, max_waiting_bytes, "guides that wait")
            for _ in ATTEMPT_SECONDS
        ]

    def enter(
        self, state: RequestState, requests: Sequence[Request], go_on: Callable[[Matchers], None]
    ) -> None:
        """Have ``go_on`` called with the requests' matchers: now, where their guides are known.

        Otherwise from another thread, or not at all, and the client hears why. Raises Overloaded
        where too many wait.
        """
        if self._guides.has_all(requests):
            go_on(self._matchers(state, requests, LAST_ATTEMPT))
        else:
            self._wait(state, requests, go_on, attempt=0)

    def _wait(
        self,
        state: RequestState,
        requests: Sequence[Request],
        go_on: Callable[[Matchers], None],
        attempt: int,
    ) -> None:
        def compile_all(permit: Permit) -> None:
            try:
                with ending(state):
                    try:
                        matchers = self._matchers(state, requests, attempt)
                    except GuideTakesLong:
                        self._wait(state, requests, go_on, attempt + 1)
                    else:
                        go_on(matchers)
            finally:
                permit.end()

        def begin(permit: Permit) -> None:
            in_background(lambda: compile_all(permit), lambda error: give_up(state, permit, error))

        size = sum(sys.getsizeof(request.guide.text) for request in requests if request.guide)
        state.permit = self._queues[attempt].acquire(begin, size)
        if state.closed:
            state.permit.withdraw()

    def _matchers(self, state: RequestState, requests: Sequence[Request], attempt: int) -> Matchers:
        """Return the matcher of each, unless nobody waits for the answers any more.

        Raises GuideTakesLong where one of the guides, or several together, take long, unless this
        is the last attempt.
        """
        matchers: Matchers = []
        until = time.monotonic() + TURN_SECONDS
        for request in requests:
            state.raise_failure()
            late = attempt < LAST_ATTEMPT and matchers and time.monotonic() > until
            if late and not self._guides.has_all([request]):
                raise GuideTakesLong("the guides of this request take long to compile")
            matchers.append(self._guides.matcher(request, attempt))
        return matchers
