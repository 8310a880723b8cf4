"""What all answers by one guide share: it grows as they go, and never shrinks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from tandem.guides.trial import Tried

# Where it is full, a new one begins. Long answers by long strings need some thousand states.
MOST_STATES: Final = 50_000
STATE_BYTES: Final = 2_000  # at most
# How fast it grows while it works, at most (250 MB was measured): the library does not tell how
# many states it has.
BYTES_PER_SECOND: Final = 500_000_000


class GuideAutomaton:
    """A compiled guide. Thread-safe.

    The library locks it as well, but waits for it with Python's own lock held: whoever asks one of
    its matchers for anything that takes time must be ``at_work``.

    Once it is full, each of its matchers takes every byte for one that does not fit, and few of
    them say why. So nothing that they said ``at_work`` holds unless there was no ``error`` then.
    """

    def __init__(self, compiled: LLMatcher, tried: Tried) -> None:
        self.tried = tried
        self._compiled = compiled
        self._probe = compiled.deep_copy()
        self._probe_is_forced = True  # as far as is known
        self._lock = threading.Lock()
        self._seconds = 0.0

    @property
    def most_bytes(self) -> int:
        """How much memory it may hold by now."""
        grown = min(self._seconds * BYTES_PER_SECOND, MOST_STATES * STATE_BYTES)
        return self.tried.num_bytes + int(grown)

    @property
    def untouched(self) -> bool:
        """Whether no answer has made it grow yet."""
        return not self._seconds

    def new_matcher(self) -> LLMatcher:
        """Return the library's matcher at the beginning of an answer."""
        return self._compiled.deep_copy()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep it for what is done, and count the time."""
        with self._lock:
            began = perf_counter()
            try:
                yield
            finally:
                self._seconds += perf_counter() - began

    def error(self) -> str:
        """Return why no matcher of it can be believed any more; nothing where they can.

        The library looks for it only where it makes a mask, or takes a token, of which not all was
        known before. So the probe stands where nothing is forced, and is asked for the same mask
        again and again: that one is kept, and costs a microsecond.
        """
        mask = self._probe.compute_bitmask()
        if self._probe_is_forced and not self._probe.is_error():
            self._probe_is_forced = bool(self._probe.compute_ff_bytes())
            if self._probe_is_forced:
                self._probe.consume_token(_first(mask))
        return self._probe.get_error()


def _first(mask: bytes) -> int:
    """Return the smallest token that a mask lets come."""
    bits = int.from_bytes(mask, "little")
    return (bits & -bits).bit_length() - 1
