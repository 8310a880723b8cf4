"""Tracks responses that Triton has not accepted yet.

Triton accepts a response within milliseconds, no matter how slowly its client reads. If it doesn't,
its streams hang (docs/deploy/security.md), which no other health check shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Deliveries:
    """The responses of one loop that Triton has not accepted yet. Thread-safe."""

    def __init__(self) -> None:
        self._begun: dict[object, float] = {}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a response as pending until the context ends."""
        delivery = object()
        self._begun[delivery] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[delivery]

    @property
    def seconds(self) -> int:
        """Whole seconds that the oldest response has waited; 0 if there is none."""
        begun = list(self._begun.values())
        return int(time.monotonic() - min(begun)) if begun else 0
