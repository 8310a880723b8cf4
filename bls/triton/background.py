"""Threads of our own, and what they do with an error that nobody else would see."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

import triton_python_backend_utils as pb_utils


def in_background(work: Callable[[], None]) -> None:
    """Run ``work`` on a new thread that does not keep the process alive."""
    threading.Thread(target=work, daemon=True).start()


def log_exception(what: str, error: BaseException) -> None:
    """Write a traceback to the server's log; clients get one line without it. Never raises."""
    text = f"tandem: {what}\n{''.join(traceback.format_exception(error))}"
    try:
        pb_utils.Logger.log_error(text)
    except Exception:  # noqa: BLE001  it goes through shared memory, which may be full
        sys.stderr.write(text)
