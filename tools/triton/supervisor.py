"""Runs Triton, and stops it even if the parent process dies."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.1


def main() -> int:
    """Run the command until it ends, and return its exit status as a shell does."""
    patience, prefix, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_supervisor,  # noqa: PLW1509  this process has one thread
    )
    try:
        # The parent closes standard input to stop the server.
        while server.poll() is None and not select.select([0], [], [], POLL_SECONDS)[0]:
            hide_regions(prefix)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
        try:
            server.wait(float(patience))
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        kill_session(os.getpid())
        unlink_regions(prefix)
        with suppress(OSError):
            Path.cwd().rmdir()  # the empty folder in which Triton was started
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def session_processes(session: int) -> Iterator[int]:
    """Yield the ids of a session's live processes, except its leader."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == session:
            continue
        try:
            # "pid (name) state parent group session ..."; the name may contain parentheses
            state, _, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it ended meanwhile
        if int(owner) == session and state != "Z":
            yield int(entry.name)


def process_name(process: int) -> str | None:
    """Return "Triton" or the model of a stub; None if the process has ended."""
    try:
        arguments = Path(f"/proc/{process}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return None
    if not any(arguments):
        return None  # it is ending and no longer has a command line
    files = [Path(argument) for argument in arguments if argument.endswith("/1/model.py")]
    return files[0].parts[-3] if files else "Triton"


def process_names(processes: Iterable[int]) -> list[str]:
    """Name the processes of a server: "Triton" first, then the model of each stub.

    A model with several stubs is listed several times.
    """
    names = [name for process in processes if (name := process_name(process))]
    return sorted(names, key=lambda name: (name != "Triton", name))


def kill_session(session: int) -> None:
    while processes := list(session_processes(session)):
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        select.select([], [], [], 0.01)


def hide_regions(prefix: str) -> None:
    """Hide one server's shared-memory regions from other users, who could read requests there.

    The Python backend creates them readable for all, whatever the umask. A link with such a name is
    another user's, so it isn't followed.
    """
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        with suppress(OSError):
            found = os.open(region, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                os.fchmod(found, 0o600)
            finally:
                os.close(found)


def unlink_regions(prefix: str) -> None:
    """Remove the shared-memory regions of one server, whose processes must have ended."""
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def _die_with_supervisor() -> None:
    """Make the kernel kill this process, the server, if the supervisor dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
