"""Run a request's work without delaying others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

LONG = 20_000  # characters of text, or work that takes equally long


async def offload(length: int, work: Callable[[], Result]) -> Result:
    """Run `work`, on a thread if `length` is large, because all streams share the event loop."""
    return await asyncio.to_thread(work) if length > LONG else work()
