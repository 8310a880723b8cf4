"""Whether a response fits into the shared memory between the engine and Triton."""

from __future__ import annotations

import os
from pathlib import Path

from tandem.engines.errors import EngineError

SHARED_MEMORY = Path("/dev/shm")
SMALL_BYTES = 2**20  # what a process has from its start
SPARE_BYTES = 2**20  # for the rest of a message, and for others that grow meanwhile


class ResponseError(EngineError):
    """A response cannot leave; its call ends."""


def check_response_memory(num_bytes: int) -> None:
    """Raise ResponseError where a response of so many bytes does not fit into shared memory.

    Triton's Python backend closes a response's sender before it copies the response there: one that
    does not fit is lost, and its caller waits for ever. So ask first. What the process had before
    and has free now is not counted: nobody can ask for it.
    """
    if num_bytes <= SMALL_BYTES:
        return
    try:
        system = os.statvfs(SHARED_MEMORY)
    except OSError:
        return
    free = system.f_bavail * system.f_frsize
    if num_bytes + SPARE_BYTES > free:
        raise ResponseError(
            f"its answer of {num_bytes / 2**20:.0f} MiB does not fit into the {free / 2**20:.0f} "
            f"MiB that {SHARED_MEMORY} has free; ask for fewer logits, or enlarge it"
        )
