"""Starts background threads, and writes to the server's log."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import Overloaded


def run_in_background(
    work: Callable[[], None], on_rejected: Callable[[Overloaded], None] | None = None
) -> None:
    """Run ``work`` on a new thread that doesn't keep the process alive.

    on_rejected: called on the calling thread if the system has no more threads. By default,
    Overloaded is raised. Pass ``on_rejected`` if the calling thread works for another request.
    """
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        overloaded = Overloaded("the server can't start another thread; try again later")
        if on_rejected is None:
            raise overloaded from error
        on_rejected(overloaded)


def log_exception(what: str, error: BaseException) -> None:
    """Write a traceback to the server's log. Never raises."""
    text = f"tandem: {what}\n{''.join(traceback.format_exception(error))}"
    _log(pb_utils.Logger.log_error, text)


def log_warning(text: str) -> None:
    """Write a warning to the server's log. Never raises."""
    _log(pb_utils.Logger.log_warn, f"tandem: {text}")


def log_info(text: str) -> None:
    """Write a line to the server's log. Never raises."""
    _log(pb_utils.Logger.log_info, f"tandem: {text}")


def _log(write: Callable[[str], None], text: str) -> None:
    try:
        write(text)
    except Exception:  # noqa: BLE001  the log uses shared memory, which may be full
        sys.stderr.write(f"{text}\n")
