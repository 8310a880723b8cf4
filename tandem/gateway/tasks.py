"""Run a request's work without delaying others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

Result = TypeVar("Result")

LONG = 20_000  # characters of text, or work that takes equally long


async def offload(
    length: int, work: Callable[[], Result], threads: Executor | None = None
) -> Result:
    """Run `work`, on a thread if `length` is large, because all streams share the event loop."""
    if length <= LONG:
        return work()
    return await asyncio.get_running_loop().run_in_executor(threads, work)
