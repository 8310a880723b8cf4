"""The interface between loops if several processes serve the stream entry.

Triton may give a request to any loop, so the loops share ``max_requests``, ``max_queue`` and the
engines' KV caches. Each loop publishes the usage of its own sequences, and only one loop admits
sequences at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple


class LoopUsage(NamedTuple):
    """Capacity used by the sequences of one loop, or of several loops together.

    arriving: number of sequences whose lengths aren't known yet. oldest_queued_at: time at which
    the first queued sequence entered the queue, in ns of the monotonic clock, which all processes
    share; 0 if the queue is empty.
    """

    running: int = 0
    arriving: int = 0
    queued: int = 0
    blocks: int = 0
    draft_blocks: int = 0
    oldest_queued_at: int = 0

    @classmethod
    def total(cls, usages: Iterable[LoopUsage]) -> LoopUsage:
        """Return the total usage of several loops."""
        all_usages = [*usages]
        if not all_usages:
            return cls()
        firsts = [usage.oldest_queued_at for usage in all_usages if usage.oldest_queued_at]
        sums = cls(*map(sum, zip(*all_usages, strict=True)))
        return sums._replace(oldest_queued_at=min(firsts, default=0))


class OtherLoops:
    """The other loops of the entry. The base class is for an entry with a single loop."""

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Keep other loops from admitting sequences until the context ends."""
        return nullcontext()

    def usage(self) -> LoopUsage:
        """Return the total usage of the other live loops."""
        return LoopUsage()

    def publish(self, usage: LoopUsage) -> None:
        """Publish this loop's usage. Call it inside ``exclusive_lock``."""

    def notify(self) -> None:
        """Notify the other loops that this loop has released capacity."""

    def open(self, *, on_stop: Callable[[str], object], on_release: Callable[[], None]) -> None:
        """Start receiving messages from other loops.

        on_stop: called with a request id if another loop was asked to stop that request and doesn't
        have it. on_release: called after another loop has released capacity. Both are called on
        the same thread.
        """

    def stop(self, request_id: str) -> None:
        """Ask the other loops to stop the requests with this id."""

    def close(self) -> None:
        """Stop receiving messages."""
