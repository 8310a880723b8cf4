"""Returns freed memory that the C library keeps."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Return free memory to the system; does nothing without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
