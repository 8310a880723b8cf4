"""Handles the signals that end a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, "FrameType | None"], object] | signal.Handlers


@contextmanager
def handle_signals(handler: Handler) -> Iterator[None]:
    """Handle the signals that end a command within the context.

    Shells start background processes with SIGINT ignored, so it is handled even then. SIGHUP stays
    ignored under `nohup`. Only the main thread receives signals, so others change nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)
