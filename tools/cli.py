"""The entry point of the `tandem` command."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

from tandem.tools.errors import TandemError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. arguments: default `sys.argv[1:]`."""
    _prepare_streams()
    try:
        return _loaded(sys.argv[1:] if arguments is None else arguments)()
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
    """Replace the streams that the shell closed, which are None, and allow for any encoding."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of characters that the encoding lacks


def _failed(reason: str) -> int:
    print(f"tandem: {reason}", file=sys.stderr)
    return 1


def _loaded(arguments: Sequence[str]) -> Callable[[], int]:
    """Read the command line and return a callable that runs the command.

    Importing a command takes up to a second, and some packages turn a KeyboardInterrupt into other
    errors. There is nothing to clean up yet, so Ctrl-C simply ends the process.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from tandem.tools.commands.command_line import read  # noqa: PLC0415  see above

        return read(arguments)
    finally:
        signal.signal(signal.SIGINT, handler)
