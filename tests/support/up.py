"""Runs `tandem up` as a process."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tandem.tools.triton.supervisor import session_processes

ANY_PORTS = [
    word for name in ("http", "grpc", "metrics", "gateway") for word in (f"--{name}-port", "0")
]


@contextmanager
def up(*options, **environment):
    """Yield the process. It is terminated when the context ends, even if the test fails."""
    command = [sys.executable, "-m", "tandem", "up", *ANY_PORTS, *map(str, options)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env=os.environ | environment,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # no effect if the process has ended


def read_greeting(process):
    """Return the lines that `up` prints when it is ready."""
    lines = []
    while not lines or "curl" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read()
    return "".join(lines)


def gateway_of(greeting):
    """Return the gateway's URL from the output of `up`."""
    (page,) = re.findall(r"^  page +(http://127\.0\.0\.1:\d+)$", greeting, re.MULTILINE)
    return page


def stubs_of(process):
    """Return the ids of Triton's and its models' processes (the session of `up`'s supervisor)."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [number for child in children for number in session_processes(int(child))]
