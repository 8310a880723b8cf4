"""The entry point of the `tandem` command."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

from tandem.tools.errors import TandemError

Handler: TypeAlias = Callable[[int, "FrameType | None"], object] | signal.Handlers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. arguments: default `sys.argv[1:]`."""
    _prepare_streams()
    try:
        # Importing a command takes up to a second, and some packages turn a KeyboardInterrupt into
        # other errors. There is nothing to clean up yet, so a signal simply ends the process.
        with _handled_by(signal.SIG_DFL):
            from tandem.tools.commands.command_line import read  # noqa: PLC0415

            command = read(sys.argv[1:] if arguments is None else arguments)
        # From here on, each signal raises KeyboardInterrupt, so that none leaves a server running.
        with _handled_by(signal.default_int_handler):
            return command()
    except TandemError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _failed(f"{place}{error.strerror or error}")


def _prepare_streams() -> None:
    """Replace streams that are None (closed by the shell), and characters that can't be printed."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of characters that the encoding lacks


def _failed(reason: str) -> int:
    print(f"tandem: {reason}", file=sys.stderr)
    return 1


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    """Handle the signals that end a command within the context.

    Shells start background processes with SIGINT ignored, so it is handled even then. SIGHUP stays
    ignored under `nohup`.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous or signal.SIG_DFL)
