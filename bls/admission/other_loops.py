"""What one loop knows of the others, where several processes serve the stream entry together.

They share one capacity: ``max_requests``, ``max_queue`` and the engines' KV caches are for all of
them, because nobody knows which loop Triton gives a request to. So each loop notes what its own
sequences take where the others read it, and admits none while another one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol


class LoopUsage(NamedTuple):
    """What sequences take of the capacity: those of one loop, or of several together.

    arriving: sequences whose lengths are not known yet. first: when the first of those that wait
    entered the queue, in ns of the monotonic clock, which all processes share; 0: nobody waits.
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
        return cls(
            running=sum(usage.running for usage in of_each),
            arriving=sum(usage.arriving for usage in of_each),
            waiting=sum(usage.waiting for usage in of_each),
            blocks=sum(usage.blocks for usage in of_each),
            draft_blocks=sum(usage.draft_blocks for usage in of_each),
            first=min((usage.first for usage in of_each if usage.first), default=0),
        )


class OtherLoops(Protocol):
    """The other loops of the entry."""

    def exclusively(self) -> AbstractContextManager[None]:
        """Keep the others from admitting for as long as the context lasts."""

    def usage(self) -> LoopUsage:
        """Return what the others take, of those that live."""

    def note(self, own: LoopUsage) -> None:
        """Tell the others what this loop takes; call it exclusively."""

    def call(self) -> None:
        """Have the others look whether sequences of theirs may start now."""

    def open(self, *, stop: Callable[[str], object], look: Callable[[], None]) -> None:
        """Begin to hear of the others.

        stop: called with the id of a request that another loop was asked to stop and does not
        know. look: called where another loop has released something. Both by one thread.
        """

    def stop(self, request_id: str) -> None:
        """Have the other loops stop the requests of this id."""

    def close(self) -> None:
        """Hear no more of the others."""


class NoOtherLoops:
    """One process serves the entry."""

    def exclusively(self) -> AbstractContextManager[None]:
        """Nobody is there to be kept out."""
        return nullcontext()

    def usage(self) -> LoopUsage:
        """Nobody takes anything."""
        return LoopUsage()

    def note(self, own: LoopUsage) -> None:
        """Nobody reads it."""

    def call(self) -> None:
        """Nobody waits."""

    def open(self, *, stop: Callable[[str], object], look: Callable[[], None]) -> None:
        """Nobody will call."""

    def stop(self, request_id: str) -> None:
        """Nobody else can know the request."""

    def close(self) -> None:
        """Nothing was opened."""
