"""Work that would hold up everybody's chunks if it were done in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

LONG = 20_000  # characters of a text, or what takes as long


async def aside(length: int, work: Callable[[], Result]) -> Result:
    """Do the work here; on a thread where it is long."""
    return await asyncio.to_thread(work) if length > LONG else work()
