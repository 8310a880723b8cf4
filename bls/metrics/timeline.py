"""When things happened to a sequence, and what follows from it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Timeline:
    """A sequence's milestones, in nanoseconds of the wall clock; 0 where not reached.

    last_delivery: of tokens or, with none, of the news that there are no more.
    """

    arrival: int
    first_scheduled: int = 0
    first_token: int = 0
    last_token: int = 0
    last_delivery: int = 0
    num_first_tokens: int = 0  # those that came at once
    num_tokens: int = 0

    def scheduled(self) -> None:
        """Decoding begins."""
        self.first_scheduled = time.time_ns()

    def delivered(self, num_tokens: int) -> None:
        """So many tokens became final."""
        self.last_delivery = time.time_ns()
        if not num_tokens:
            return
        self.last_token = self.last_delivery
        self.num_tokens += num_tokens
        if not self.first_token:
            self.first_token, self.num_first_tokens = self.last_token, num_tokens

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival, time in the queue included; None where no token ever came."""
        return _seconds(self.arrival, self.first_token) if self.num_tokens else None

    @property
    def inter_token_latency(self) -> float | None:
        """Seconds a token, of those after the first delivery; None where there were none.

        The first delivery's tokens came at once: what they took is the time to first token.
        """
        later_tokens = self.num_tokens - self.num_first_tokens
        if not later_tokens:
            return None
        return _seconds(self.first_token, self.last_token) / later_tokens

    @property
    def decoding_seconds(self) -> float:
        """Seconds from the start of decoding to the last delivery."""
        return _seconds(self.first_scheduled, self.last_delivery) if self.last_delivery else 0.0


def _seconds(start: int, end: int) -> float:
    """The wall clock may have been set back between the two times."""
    return max(0, end - start) / 1e9
