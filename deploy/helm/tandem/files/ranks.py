"""Starts MPI ranks in the pods of a LeaderWorkerSet: no ssh, no kubectl, no right in the cluster.

    ranks.py lead COMMAND...    in the leader: run mpirun
    ranks.py follow             in a worker: run what mpirun wants there

mpirun starts one daemon on every other host through a "remote shell agent": a program that is given
the host's name and a command line. Here the agent (``ranks.py post``) only puts that line where the
leader serves it over HTTP. The worker, which has been asking the leader for the line of its own
pod, runs it, and the daemon connects back to mpirun by itself. So no pod takes commands from the
network: a worker obeys the leader of its group, whose name Kubernetes resolves.
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
FOLDER = "TANDEM_RANKS_FOLDER"  # where the agent finds the posted lines are
POLL_SECONDS = 1.0
# Straight to the leader: a container may name a proxy for all else in its environment.
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def main(verb: str, *rest: str) -> int:
    """Run one verb; return the exit status."""
    if verb == "lead":
        return lead(rest)
    if verb == "post":
        return post(rest[0], rest[1:])
    return follow()


def lead(command: Sequence[str]) -> int:
    """Run mpirun, serving what it posts for the workers; return its exit status."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        server = ThreadingHTTPServer(("", PORT), partial(Posted, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return run(command, os.environ | settings() | {FOLDER: folder})


def settings() -> dict[str, str]:
    """Return the environment that makes mpirun post; Open MPI 4 and 5 name the settings apart.

    Without the tree, all posting is done by mpirun, not by daemons in other pods.
    """
    agent = f"{sys.executable} {Path(__file__).resolve()} post"
    return {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    }


def post(host: str, words: Sequence[str]) -> int:
    """Put a host's command line where it is served, whole or not at all."""
    place = Path(os.environ[FOLDER], host)
    unfinished = Path(os.environ[FOLDER], f".{host}")
    unfinished.write_text(" ".join(words))  # as ssh joins them: mpirun has quoted for a shell
    unfinished.rename(place)
    return 0


def follow() -> int:
    """Wait for this host's command line and run it; return its exit status."""
    url = f"http://{os.environ['LWS_LEADER_ADDRESS']}:{PORT}/{os.environ['POD_NAME']}"
    sys.stdout.write(f"waiting for {url}\n")
    sys.stdout.flush()
    while (line := read(url)) is None:
        time.sleep(POLL_SECONDS)
    return run(["sh", "-c", line], os.environ)


def read(url: str) -> str | None:
    """Return the posted line; None while there is none, or no leader."""
    with contextlib.suppress(OSError), OPEN(url, timeout=5) as answer:
        return str(answer.read().decode())
    return None


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end; pass SIGTERM on, which the first process of a pod has to do."""
    process = subprocess.Popen(command, env=environment, start_new_session=True)

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    return process.wait()


class Posted(SimpleHTTPRequestHandler):
    """Serves the posted lines, without a line of log for every question of every worker."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
