"""What one loop knows about the others, if several processes serve the stream entry together.

They share one capacity: ``max_requests``, ``max_queue`` and the engines' KV caches are limits for
all loops, because it is open which loop Triton gives a request to. So each loop publishes what its
own sequences take, and admits none while another loop does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple


class LoopUsage(NamedTuple):
    """What the sequences of one loop, or of several together, take of the capacity.

    arriving: sequences whose lengths are not known yet. first: when the first waiting sequence
    entered the queue, in ns of the monotonic clock, which all processes share; 0: none is waiting.
    """

    running: int = 0
    arriving: int = 0
    waiting: int = 0
    blocks: int = 0
    draft_blocks: int = 0
    first: int = 0

    @classmethod
    def of_all(cls, usages: Iterable[LoopUsage]) -> LoopUsage:
        """Return what several loops take together."""
        of_each = [*usages]
        if not of_each:
            return cls()
        firsts = [usage.first for usage in of_each if usage.first]
        sums = cls(*map(sum, zip(*of_each, strict=True)))
        return sums._replace(first=min(firsts, default=0))


class OtherLoops:
    """The other loops of the entry. This class stands for none: one process serves the entry."""

    def exclusively(self) -> AbstractContextManager[None]:
        """Keep the others from admitting until the context ends."""
        return nullcontext()

    def usage(self) -> LoopUsage:
        """Return what the live ones among the others take."""
        return LoopUsage()

    def note(self, own: LoopUsage) -> None:
        """Publish what this loop takes. Call it exclusively."""

    def call(self) -> None:
        """Have the others check whether their sequences may start now."""

    def open(self, *, stop: Callable[[str], object], look: Callable[[], None]) -> None:
        """Begin to receive messages of the others.

        stop: called with the id of a request that another loop was asked to stop and does not
        know. look: called if another loop has released something. One thread calls both.
        """

    def stop(self, request_id: str) -> None:
        """Have the other loops stop the requests with this id."""

    def close(self) -> None:
        """Stop receiving messages."""
