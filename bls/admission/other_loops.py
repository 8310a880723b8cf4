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

    arriving: number of sequences whose lengths aren't known yet. first: time at which the first
    waiting sequence entered the queue, in ns of the monotonic clock, which all processes share; 0
    if no sequence is waiting.
    """

    running: int = 0
    arriving: int = 0
    waiting: int = 0
    blocks: int = 0
    draft_blocks: int = 0
    first: int = 0

    @classmethod
    def of_all(cls, usages: Iterable[LoopUsage]) -> LoopUsage:
        """Return the total usage of several loops."""
        of_each = [*usages]
        if not of_each:
            return cls()
        firsts = [usage.first for usage in of_each if usage.first]
        sums = cls(*map(sum, zip(*of_each, strict=True)))
        return sums._replace(first=min(firsts, default=0))


class OtherLoops:
    """The other loops of the entry. The base class is for an entry with a single loop."""

    def exclusively(self) -> AbstractContextManager[None]:
        """Keep other loops from admitting sequences until the context ends."""
        return nullcontext()

    def usage(self) -> LoopUsage:
        """Return the total usage of the other live loops."""
        return LoopUsage()

    def publish(self, own: LoopUsage) -> None:
        """Publish this loop's usage. Call it inside ``exclusively``."""

    def notify(self) -> None:
        """Notify the other loops that this loop has released capacity."""

    def open(self, *, stop: Callable[[str], object], released: Callable[[], None]) -> None:
        """Start receiving messages from other loops.

        stop: called with a request id if another loop was asked to stop that request and doesn't
        have it. released: called after another loop has released capacity. Both are called on the
        same thread.
        """

    def stop(self, request_id: str) -> None:
        """Ask the other loops to stop the requests with this id."""

    def close(self) -> None:
        """Stop receiving messages."""
