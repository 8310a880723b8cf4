"""Records the times of a sequence's milestones, and computes latencies from them."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Timeline:
    """Times of a sequence's milestones, in ns of the wall clock; 0 if not reached.

    last_delivery: time of the last tokens, or of an end without tokens. num_first_tokens: number of
    tokens in the first delivery.
    """

    arrival: int
    first_scheduled: int = 0
    first_token: int = 0
    last_token: int = 0
    last_delivery: int = 0
    num_first_tokens: int = 0
    num_tokens: int = 0

    def mark_scheduled(self) -> None:
        self.first_scheduled = time.time_ns()

    def record_delivery(self, num_tokens: int) -> None:
        """Record that ``num_tokens`` tokens became final now."""
        self.last_delivery = time.time_ns()
        if not num_tokens:
            return
        self.last_token = self.last_delivery
        self.num_tokens += num_tokens
        if not self.first_token:
            self.first_token, self.num_first_tokens = self.last_token, num_tokens

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token, including queueing; None without tokens."""
        return _seconds(self.arrival, self.first_token) if self.num_tokens else None

    @property
    def inter_token_latency(self) -> float | None:
        """Seconds per token after the first delivery; None if no tokens followed it.

        The tokens of the first delivery don't count: the time to first token covers them.
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
    """Return the seconds between two times in ns; 0 if the wall clock was set back."""
    return max(0, end - start) / 1e9
