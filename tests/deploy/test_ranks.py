"""The leader starts the ranks of a group with mpirun. Both pods run on this machine."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from live_triton import lasting_ports

from tandem.tools.triton.server import LOOPBACK

BIN = Path(sys.executable).parent
CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "tandem"
# A stand-in for tritonserver that prints its rank, its pod and its arguments.
SERVER = """#!/bin/sh
echo "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE in $POD_NAME: $*"
"""
LAUNCH = {"mode": "leader", "ranks": 4, "nodes": 2, "engines": ["target"]}
VALUES = {"launch": LAUNCH, "gpus": 2}


@pytest.fixture
def environment(tmp_path):
    """The environment variables of a container, except POD_NAME."""
    server = tmp_path / "tritonserver"
    server.write_text(SERVER)
    server.chmod(0o755)
    [port] = lasting_ports(1)
    return os.environ | {
        "PATH": f"{tmp_path}:{BIN}:{os.environ['PATH']}",
        "LWS_LEADER_ADDRESS": LOOPBACK,
        "TANDEM_RANKS_PORT": str(port),
        "http_proxy": "http://127.0.0.1:9",  # a webhook may set it; the leader has none
        **dict.fromkeys(("no_proxy", "NO_PROXY"), ""),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def start(args, pod, environment):
    """Start a container's arguments as if in the pod with this name."""
    return subprocess.Popen(
        [argument.replace("/etc/tandem", str(CHART / "files")) for argument in args],
        env=environment | {"POD_NAME": pod},
        stdout=subprocess.PIPE,
        text=True,
    )


def run_group(render, environment):
    """Run a group to its end; return the output of all ranks and both exit statuses."""
    group, here = (
        render(VALUES).group,
        socket.gethostname(),
    )  # mpirun recognizes its own pod by the host name
    leader, worker = (
        group[role]["spec"]["containers"][0]["args"]
        for role in ("leaderTemplate", "workerTemplate")
    )
    # Skip the shell command that clears /dev/shm, because it would clear this machine's.
    leader = [argument.replace("$(POD_NAME)", here) for argument in leader[4:]]
    with (
        start(worker, f"{here}-1", environment) as following,
        start(leader, here, environment) as leading,
    ):
        said, _ = leading.communicate(timeout=60)
        following.communicate(timeout=60)
    return sorted(said.splitlines()), leading.returncode, following.returncode


def test_ranks_start_in_the_leader_and_worker_pods(render, environment):
    ranks, leading, following = run_group(render, environment)
    here = socket.gethostname()
    assert [rank.partition(":")[0] for rank in ranks] == [
        f"0 of 4 in {here}",
        f"1 of 4 in {here}",
        f"2 of 4 in {here}-1",
        f"3 of 4 in {here}-1",
    ]
    for number, rank in enumerate(ranks):
        assert f"shm-region-prefix-name=triton_python_backend_shm_region_tandem-{number}-" in rank
        assert ("--load-model=target" in rank) is (number > 0)
    assert leading == following == 0


def test_a_worker_that_waits_for_its_leader_ends_on_sigterm(environment):
    """The kernel drops the signal if the first process of a container doesn't handle it."""
    ranks = [sys.executable, str(CHART / "files" / "ranks.py"), "follow"]
    with start(ranks, "worker", environment) as waiting:
        assert waiting.stdout.readline().startswith("waiting for http://")
        waiting.terminate()
        assert waiting.wait(10) == 128 + signal.SIGTERM


def test_a_rank_that_fails_ends_the_group(render, environment, tmp_path):
    failing = "#!/bin/sh\n[ $OMPI_COMM_WORLD_RANK = 3 ] && exit 7\nexec sleep 100\n"
    (tmp_path / "tritonserver").write_text(failing)
    _, leading, _ = run_group(render, environment)
    assert leading == 7
