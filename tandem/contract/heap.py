"""Returns freed memory from the C library to the system."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Return freed memory to the system. Does nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
