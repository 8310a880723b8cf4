"""Starts MPI ranks in the pods of a LeaderWorkerSet, without ssh, kubectl or cluster permissions.

    ranks.py lead COMMAND...    in the leader: run mpirun
    ranks.py follow             in a worker: run the command that mpirun posts for it

mpirun starts one daemon on every other host through a "remote shell agent", a program that gets the
host's name and a command line. Here the agent is ``ranks.py post``. It writes the command line to a
folder that the leader serves over HTTP. Each worker requests the command line for its own pod from
the leader and runs it. The daemon then connects back to mpirun.

No pod listens for commands. A worker runs commands only from the leader of its group, whose name
Kubernetes resolves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = int(os.environ.get("TANDEM_RANKS_PORT", "8003"))
FOLDER = "TANDEM_RANKS_FOLDER"  # environment variable: the folder in which the agent posts
POLL_SECONDS = 1.0
# Connect directly, because a container's environment may set a proxy.
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def main(verb: str, *rest: str) -> int:
    if verb == "lead":
        return lead(rest)
    if verb == "post":
        return post(rest[0], rest[1:])
    return follow()


def lead(command: Sequence[str]) -> int:
    """Run mpirun, and serve the posted command lines to the workers; return its exit status."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        server = ThreadingHTTPServer(("", PORT), partial(Posted, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return run(command, os.environ | settings() | {FOLDER: folder})


def settings() -> dict[str, str]:
    """Return the environment that makes mpirun use the agent, for both Open MPI 4 and 5.

    Tree spawning of daemons is disabled, so that mpirun itself sends all command lines.
    """
    agent = f"{sys.executable} {Path(__file__).resolve()} post"
    return {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }


def post(host: str, words: Sequence[str]) -> int:
    """Write the command line for a host to the served folder, atomically."""
    place = Path(os.environ[FOLDER], host)
    unfinished = Path(os.environ[FOLDER], f".{host}")
    unfinished.write_text(" ".join(words))  # joined as ssh does; mpirun has quoted them
    unfinished.rename(place)
    return 0


def follow() -> int:
    """Wait for this host's command line and run it; return its exit status."""
    # The first process of a pod gets no signal that it doesn't handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    url = f"http://{os.environ['LWS_LEADER_ADDRESS']}:{PORT}/{os.environ['POD_NAME']}"
    sys.stdout.write(f"waiting for {url}\n")
    sys.stdout.flush()
    while (line := read(url)) is None:
        time.sleep(POLL_SECONDS)
    return run(["sh", "-c", line], os.environ)


def read(url: str) -> str | None:
    """Return the posted command line, or None if there is no command line or no leader yet."""
    with contextlib.suppress(OSError), OPEN(url, timeout=5) as answer:
        return str(answer.read().decode())
    return None


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command and return its exit status.

    Forwards SIGTERM to the command, as the first process of a pod must do.
    """
    process = subprocess.Popen(command, env=environment, start_new_session=True)

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    return process.wait()


class Posted(SimpleHTTPRequestHandler):
    """Serves the posted command lines, without logging the workers' many requests."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
