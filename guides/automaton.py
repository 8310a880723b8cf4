"""The compiled form of a guide, which all its answers share. It grows and never shrinks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from tandem.guides.trial import Tried

# A full automaton is replaced. Long answers with long strings need some thousand states.
MOST_STATES: Final = 50_000
STATE_BYTES: Final = 2_000  # at most
# Maximum growth while it works (250 MB was measured); the library doesn't report its size.
BYTES_PER_SECOND: Final = 500_000_000


class GuideAutomaton:
    """A compiled guide. Thread-safe.

    The library has its own lock, but waits for it while holding Python's. So slow calls of a
    matcher belong inside ``at_work``.

    Once it is full, its matchers reject every byte, often without an error. So results are valid
    only if there is no ``error`` afterwards.
    """

    def __init__(self, compiled: LLMatcher, tried: Tried) -> None:
        self.tried = tried
        self._compiled = compiled
        self._probe = compiled.deep_copy()
        self._probe_is_forced = True  # until checked
        self._lock = threading.Lock()
        self._seconds = 0.0

    @property
    def most_bytes(self) -> int:
        """Upper bound on its current memory use in bytes."""
        grown = min(self._seconds * BYTES_PER_SECOND, MOST_STATES * STATE_BYTES)
        return self.tried.num_bytes + int(grown)

    @property
    def untouched(self) -> bool:
        """Whether no answer has extended it yet."""
        return not self._seconds

    def new_matcher(self) -> LLMatcher:
        """Return the library's matcher at the beginning of an answer."""
        return self._compiled.deep_copy()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lock the automaton and measure the time."""
        with self._lock:
            began = perf_counter()
            try:
                yield
            finally:
                self._seconds += perf_counter() - began

    def error(self) -> str:
        """Return the reason why its matchers are invalid, or an empty string if they are valid.

        The library notices an error only when it computes a mask or processes a token that isn't
        cached. The probe is at a position where nothing is forced, and computes the same mask each
        time, which takes a microsecond.
        """
        mask = self._probe.compute_bitmask()
        if self._probe_is_forced and not self._probe.is_error():
            self._probe_is_forced = bool(self._probe.compute_ff_bytes())
            if self._probe_is_forced:
                self._probe.consume_token(_first(mask))
        return self._probe.get_error()


def _first(mask: bytes) -> int:
    """Return the smallest token that a mask allows."""
    bits = int.from_bytes(mask, "little")
    return (bits & -bits).bit_length() - 1
