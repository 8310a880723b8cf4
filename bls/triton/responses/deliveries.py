"""Tracks responses that Triton hasn't accepted yet.

Triton accepts a response within milliseconds, no matter how slowly the client reads. If it takes
longer, Triton's streams hang (docs/deploy/security.md). No other health check detects that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Deliveries:
    """Responses of one loop that Triton hasn't accepted yet. Thread-safe."""

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
