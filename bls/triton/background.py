"""Background threads, and how their errors reach the log."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

import triton_python_backend_utils as pb_utils

from tandem.bls.errors import Overloaded


def in_background(
    work: Callable[[], None], refused: Callable[[Overloaded], None] | None = None
) -> None:
    """Run ``work`` on a new thread that does not keep the process alive.

    Where the system has no more threads, ``refused`` is called instead, by the calling thread: that
    one often works for somebody else, who is not to suffer. Without ``refused``, it is raised.
    """
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        overloaded = Overloaded("overloaded: the server can start no more threads; try again later")
        if refused is None:
            raise overloaded from error
        refused(overloaded)


def log_exception(what: str, error: BaseException) -> None:
    """Write a traceback to the server's log; clients get one line without it. Never raises."""
    text = f"tandem: {what}\n{''.join(traceback.format_exception(error))}"
    try:
        pb_utils.Logger.log_error(text)
    except Exception:  # noqa: BLE001  it goes through shared memory, which may be full
        sys.stderr.write(text)
