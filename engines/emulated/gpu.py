"""A model of a GPU that draft and target share: two that work at once take twice as long."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Literal

from tandem.engines.errors import LoadError

BESIDE_ANOTHER = 2.0
_ROLES = ("draft", "target")


class SharedGpu:
    """Two engines, in processes of their own, that share until when each is busy.

    The model: two processes on one GPU are served in turns, so a step that begins while the other
    engine works takes twice as long. It is decided when the step begins (for an answer of several
    steps: the first) and not revised. A single request's loop lets one engine wait for the other,
    so it loses nothing; requests side by side do.
    """

    def __init__(self, path: Path, role: Literal["draft", "target"]) -> None:
        """Share a file, made if it is not there. Raises LoadError."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.ftruncate(descriptor, 8 * len(_ROLES))  # one time for each, 0 when new
                self._memory = memoryview(mmap.mmap(descriptor, 8 * len(_ROLES))).cast("q")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LoadError(f"same_gpu needs the file {path}: {error.strerror}") from error
        self._own = _ROLES.index(role)

    def slow_down(self, now_ns: int) -> float:
        return BESIDE_ANOTHER if self._memory[1 - self._own] > now_ns else 1.0

    def busy_until(self, due_ns: int) -> None:
        self._memory[self._own] = max(self._memory[self._own], due_ns)
