"""The compiled form of a guide. All answers with that guide share it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from tandem.guides.worker import ValidGuide

# An automaton with this many states is full and gets replaced. Long answers with long strings need
# a few thousand states.
MAX_STATES: Final = 50_000
STATE_BYTES: Final = 2_000  # maximum size of a state
# Assumed growth per second of work (250 MB/s was measured). The library doesn't report the size.
BYTES_PER_SECOND: Final = 500_000_000


class GuideAutomaton:
    """A compiled guide. It grows and never shrinks. Thread-safe.

    The library has its own lock, but holds the GIL while it waits for that lock. So slow calls of a
    matcher belong inside ``lock_and_time``.

    Once the automaton has reached its state limit (is *full*), its matchers reject every byte,
    often without an error. So a result of a matcher is valid only if ``error`` returns no error
    after it.
    """

    def __init__(self, compiled: LLMatcher, valid_guide: ValidGuide) -> None:
        self.valid_guide = valid_guide
        self._compiled = compiled
        self._probe = compiled.deep_copy()
        self._probe_is_forced = True  # whether text may be forced at the probe's position
        self._lock = threading.Lock()
        self._seconds = 0.0

    @property
    def max_bytes(self) -> int:
        """Upper bound on the current memory use in bytes."""
        grown = min(self._seconds * BYTES_PER_SECOND, MAX_STATES * STATE_BYTES)
        return self.valid_guide.num_bytes + int(grown)

    def new_matcher(self) -> LLMatcher:
        """Return a matcher of the library at the start of an answer."""
        return self._compiled.deep_copy()

    @contextmanager
    def lock_and_time(self) -> Iterator[None]:
        """Lock the automaton and measure how long it is used."""
        with self._lock:
            began = perf_counter()
            try:
                yield
            finally:
                self._seconds += perf_counter() - began

    def error(self) -> str:
        """Return the error that makes the automaton's matchers invalid, or "" if they are valid.

        The library detects an error only when it computes a mask or processes a token that isn't
        cached. So a probe matcher stays at a position where no text is forced, and computes the
        same mask each time, which takes 1 us.
        """
        mask = self._probe.compute_bitmask()
        if self._probe_is_forced and not self._probe.is_error():
            self._probe_is_forced = bool(self._probe.compute_ff_bytes())
            if self._probe_is_forced:
                self._probe.consume_token(_first(mask))
        return self._probe.get_error()


def _first(mask: bytes) -> int:
    """Return the smallest token id that a mask allows."""
    bits = int.from_bytes(mask, "little")
    return (bits & -bits).bit_length() - 1
