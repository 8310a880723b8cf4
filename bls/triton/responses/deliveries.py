"""Which responses Triton is taking now, and since when.

It takes one within milliseconds, however slowly its client reads. One that it does not take is the
sign that its streams hang (docs/deploy/security.md), which nothing else in a server's health shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Deliveries:
    """The responses of one loop that are under way. Thread-safe."""

    def __init__(self) -> None:
        self._begun: dict[object, float] = {}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a response as under way."""
        delivery = object()
        self._begun[delivery] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[delivery]

    @property
    def seconds(self) -> int:
        """For how many whole seconds the oldest one has been under way; 0 where there is none."""
        begun = list(self._begun.values())
        return int(time.monotonic() - min(begun)) if begun else 0
