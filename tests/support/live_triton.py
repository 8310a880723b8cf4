"""Helpers for tests of a live Triton."""

import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandem.tools.triton.install import TritonInstall
from tandem.tools.triton.server import LOOPBACK, TritonServer
from tandem.tools.triton.supervisor import process_name

CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: 1
input {{ name: "X" data_type: TYPE_INT32 dims: 1 }}
output {{ name: "Y" data_type: TYPE_INT32 dims: 1 }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        x = [pb_utils.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", a)]) for a in x]
"""

LAST_WORDS = 4000  # characters to print from the end of a log


class KilledServer(TritonServer):
    """A server that is killed when the context ends, because a regular stop takes three seconds.

    tests/server/test_lifecycle.py, test_up.py and other files test regular stops.
    """

    def __exit__(self, *_: object) -> None:
        if not self.running and self.log.path.exists():  # the server crashed
            print(self.log.path.read_text(errors="replace")[-LAST_WORDS:], file=sys.stderr)
        self.kill()


class ObedientServer(KilledServer):
    """A server that loads and unloads models when a client requests it."""

    def _command(self, install: TritonInstall) -> list[str]:
        return [*super()._command(install), "--model-control-mode=explicit", "--load-model=*"]


def triton_of(server: TritonServer) -> int:
    """Return the id of Triton's own process. The other processes are stubs."""
    return next(process for process in server.processes if process_name(process) == "Triton")


def write_model(repository: Path, name: str, initialize: str = "pass") -> None:
    """Write a model that returns its input. initialize: Python code that runs at loading."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name))
    (version / "model.py").write_text(MODEL.format(initialize=initialize))


def alive(pid: int) -> bool:
    """Return whether a process is running. A zombie isn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def leftovers(prefix: str) -> list[str]:
    """Return the names of a server's remaining shared-memory regions."""
    return [path.name for path in Path("/dev/shm").glob(f"{prefix}*")]


def memory_bytes(processes: list[int]) -> int:
    """Return the total memory of processes in bytes. Shared pages count once."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in processes]
    return sum(
        int(line.split()[1]) * 1024
        for rollup in rollups
        for line in rollup.splitlines()
        if line.startswith("Pss:")
    )


def lasting_ports(count: int) -> list[int]:
    """Return free ports that the kernel doesn't assign to other sockets (ephemeral ports)."""
    free: list[int] = []
    while len(free) < count:
        with socket.socket() as tried, suppress(OSError):
            tried.bind((LOOPBACK, random.randrange(10_000, 30_000)))
            free.append(tried.getsockname()[1])
    return free


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> bool:
    """Wait until a condition is true, and return whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not (holds := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds
