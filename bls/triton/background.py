"""Threads of our own, and what they do with an error that nobody else would see."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import triton_python_backend_utils as pb_utils


def in_background(work: Callable[[], None]) -> None:
    """Run ``work`` on a new thread that does not keep the process alive."""
    threading.Thread(target=work, daemon=True).start()


def log_exception(what: str, error: BaseException) -> None:
    """Write a traceback to the server's log; clients get one line without it."""
    text = "".join(traceback.format_exception(error))
    pb_utils.Logger.log_error(f"tandem: {what}\n{text}")
