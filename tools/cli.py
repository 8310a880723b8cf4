"""The entry point of the `tandem` command."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence

from tandem.tools.errors import TandemError
from tandem.tools.signals import handle_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. arguments: default `sys.argv[1:]`.

    The status is 2 if the command line is wrong, 1 after a failure.
    """
    _prepare_streams()
    try:
        # Importing a command takes up to a second, and some packages turn a KeyboardInterrupt into
        # other errors. There is nothing to clean up yet, so a signal simply ends the process.
        with handle_signals(signal.SIG_DFL):
            from tandem.tools.commands.command_line import read  # noqa: PLC0415

            command = read(sys.argv[1:] if arguments is None else arguments)
        # From here on, each signal raises KeyboardInterrupt, so that none leaves a server running.
        with handle_signals(signal.default_int_handler):
            status = command()
        sys.stdout.flush()
    except TandemError as error:
        return _report_failure(str(error), error.exit_status)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        return 128 + signal.SIGPIPE
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich's console exits with status 1
            return 128 + signal.SIGPIPE
        raise
    except OSError as error:
        place = error.filename
        if place is None and error.errno == errno.ENOENT:
            place = "the current folder"
        reason = error.strerror or str(error)
        return _report_failure(f"{place}: {reason}" if place else reason)
    else:
        return status
    finally:
        _discard_unwritable_output()


def _prepare_streams() -> None:
    """Replace streams that are None (closed by the shell), and characters that can't be printed."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of characters that the encoding lacks


def _discard_unwritable_output() -> None:
    """Drop output that can't be written. Python would print a traceback when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_failure(reason: str, status: int = 1) -> int:
    """Print an error on one line. Line breaks and control characters in user text are escaped."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in reason)
    print(f"tandem: {line}", file=sys.stderr)
    return status
