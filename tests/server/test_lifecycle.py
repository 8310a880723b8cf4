"""A server starts, reports that it is ready or why it failed, and stops without leftovers."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as client
from entries import infer_input
from error_lines import error_line
from live_triton import alive, eventually, leftovers, triton_of, write_model
from scale import first_of

from tandem.tools.errors import TandemError
from tandem.tools.triton import server as servers
from tandem.tools.triton.server import ANY_PORTS, LOOPBACK, Ports, TritonServer, claim_ports

DIES = pytest.param("import os; os._exit(3)", "", marks=pytest.mark.heavy)
START_AND_PRINT = """
import sys, time
from pathlib import Path
from tandem.tools.triton.server import TritonServer

server = TritonServer(Path(sys.argv[1]), thread_pool_size=8)
server.start()
print(server.shm_prefix, *server.processes, flush=True)
time.sleep(600)
"""

PAUSE_TRITON = "import os; os.kill(os.getppid(), 19)"  # SIGSTOP
# Loads an engine, and pauses its process meanwhile in the first start.
PAUSE = """exec('''
import os, pathlib, subprocess
first = pathlib.Path({first!r})
if first.exists():
    first.unlink()
    pid = os.getpid()
    subprocess.run(["sh", "-c", f"kill -STOP {{pid}}; sleep 2.5; kill -CONT {{pid}}"])
print("tandem: engine 'echo' has loaded", flush=True)
''')"""


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path, "echo")
    return tmp_path


def start(models, **options):
    return TritonServer(models, thread_pool_size=8, **options)


def rejection(models, **options):
    """Return the one-line error of a server that can't start."""
    text = error_line(TandemError, start(models, **options).start)
    if "log: " in text:
        Path(text.rpartition("log: ")[2]).unlink()
    return text


def test_a_repository_path_with_a_space_is_rejected_immediately(tmp_path):
    """With such a path, Triton would wait for its Python models forever."""
    write_model(tmp_path / "a b", "echo")
    assert rejection(tmp_path / "a b") == (
        f"Triton can't serve a path with a space: {tmp_path / 'a b'}; if Tandem created it, set "
        "TMPDIR or XDG_CACHE_HOME"
    )


def test_progress_and_the_startup_timeout_error_name_models_that_are_not_ready(tmp_path):
    write_model(tmp_path, "echo", initialize=PAUSE_TRITON)

    def give_up(line):
        raise TandemError(line)

    line = rejection(tmp_path, on_progress=give_up)
    assert line.startswith("0 of 1 models, waiting for echo (")
    assert rejection(tmp_path, startup_timeout=0.01).partition("; log: ")[0] == (
        "Triton isn't ready after 0.01 s, waiting for echo; raise timeouts.startup if it needs "
        "longer"
    )


def ask(server):
    """Send a 7 to the echo model, and return its answer."""
    with client.InferenceServerClient(server.grpc_url) as connection:
        sent = infer_input("X", np.full((1, 1), 7, np.int32))
        return connection.infer("echo", [sent]).as_numpy("Y").item()


@pytest.mark.heavy
def test_a_start_is_repeated_if_an_engine_pauses_while_it_loads(tmp_path):
    first = tmp_path / "first start"
    first.touch()
    write_model(tmp_path / "models", "echo", initialize=PAUSE.format(first=str(first)))
    logs = set()
    server = start(tmp_path / "models", on_progress=lambda _: logs.add(server.log.path))
    with server:
        assert ask(server) == 7
    assert len(logs) > 1
    assert not any(path.exists() for path in logs)


def test_a_stopped_server_leaves_no_files_or_processes(tmp_path):
    # `Sender` gets the free shared memory from this undocumented call before it sends an end.
    pool = "__import__('sys').modules['c_python_backend_utils'].shared_memory"
    write_model(tmp_path, "echo", initialize=f"assert 2**19 < {pool}.free_memory() < 2**20")
    server = start(tmp_path)
    server.start()
    assert ask(server) == 7
    with urllib.request.urlopen(f"http://{server.http_url}/v2/health/ready") as answer:
        assert answer.status == 200
    with urllib.request.urlopen(server.metrics_url) as answer:
        assert b"nv_inference_request_success" in answer.read()
    processes, log = server.processes, server.log.path
    folder = Path(f"/proc/{processes[0]}/cwd").readlink()
    assert len(processes) == 2  # Triton and the echo model
    assert leftovers(server.shm_prefix)
    triton, lines = triton_of(server), []
    os.kill(triton, signal.SIGSTOP)  # it can't end before the first line

    def resume(line):
        if not lines:
            os.kill(triton, signal.SIGCONT)
        lines.append(line)

    server.stop(resume)
    assert lines[0].startswith("waiting for Triton, echo (")
    assert not any(map(alive, processes))
    assert not leftovers(server.shm_prefix)
    assert not log.exists()
    assert not folder.exists()


@pytest.mark.heavy
def test_a_server_stops_with_an_idle_stream_open(models, monkeypatch):
    monkeypatch.setattr(servers, "STOP_SECONDS", 1.0)
    with start(models) as server:
        processes = server.processes
        connection = client.InferenceServerClient(server.grpc_url)
        connection.start_stream(lambda result, error: None)
    assert not any(map(alive, processes))
    assert not leftovers(server.shm_prefix)
    connection.close()


@pytest.mark.heavy
def test_a_server_can_stop_after_a_stub_was_killed(models):
    with start(models) as server:
        os.kill(max(server.processes), signal.SIGKILL)
    assert not leftovers(server.shm_prefix)


@pytest.mark.parametrize("victim", first_of("starter", "supervisor"))
def test_a_killed_starter_or_guard_leaves_no_processes_or_files(models, victim):
    command = [sys.executable, "-c", START_AND_PRINT, str(models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        prefix, *pids = starter.stdout.readline().split()
        processes = [int(pid) for pid in pids]
        supervisor = os.getsid(processes[0])
        os.kill(starter.pid if victim == "starter" else supervisor, signal.SIGKILL)
        assert eventually(lambda: not any(map(alive, processes)))
        starter.kill()
    if victim == "starter":
        assert eventually(lambda: not alive(supervisor) and not leftovers(prefix))


@pytest.mark.parametrize(
    ("initialize", "reason"),
    [("raise ValueError('no such language')", "ValueError: no such language; log: "), DIES],
)
def test_the_error_names_a_model_that_fails_to_load_and_the_reason(models, initialize, reason):
    write_model(models, "broken", initialize=initialize)
    assert rejection(models).startswith(f"model 'broken' failed to load: {reason}")


def test_the_error_names_a_wrong_repository_or_a_busy_port(models, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        text = rejection(models, ports=Ports(0, port, 0))
    assert text == (
        f"can't listen on 127.0.0.1:{port} (grpc): Address already in use; "
        "use --grpc-port 0, or another --base-port or --address"
    )
    (models / "echo" / "config.pbtxt").write_text("nonsense")
    assert "'echo'" in rejection(models)
    (empty := tmp_path / "empty").mkdir()
    assert rejection(empty) == f"{empty} has no models (no */config.pbtxt)"


def test_another_port_is_used_if_one_was_taken_during_startup(models, monkeypatch):
    with socket.create_server((LOOPBACK, 0)) as other:
        taken = [replace(claim_ports(ANY_PORTS, LOOPBACK), grpc=other.getsockname()[1])]
        monkeypatch.setattr(
            servers, "claim_ports", lambda *asked: taken.pop() if taken else claim_ports(*asked)
        )
        with start(models) as server:
            assert ask(server) == 7
            server.kill()  # a regular stop is slower


def test_a_server_listens_on_an_ipv6_address(models):
    with start(models, address="::1") as server:
        assert ask(server) == 7
        server.kill()  # a regular stop is slower


def test_waiting_for_the_server_ends_with_the_reason_when_it_dies(models):
    with start(models) as server:
        os.kill(triton_of(server), signal.SIGKILL)
        with pytest.raises(TandemError, match=r"^Triton was killed by signal 9; log: "):
            server.wait()
    assert server.log.path.exists()
    server.log.path.unlink()


def test_the_log_of_a_crash_is_kept_even_if_the_server_is_stopped_next(models, monkeypatch):
    monkeypatch.setattr(servers, "EXIT_GRACE_SECONDS", 60.0)
    with start(models) as server:
        triton = triton_of(server)
        os.kill(triton, signal.SIGKILL)
        assert eventually(lambda: triton not in server.processes)
    assert server.log.path.exists()
    server.log.path.unlink()


@pytest.mark.heavy
def test_a_server_whose_processes_all_get_sigterm_has_not_failed(models):
    """Systemd stops a unit this way."""
    with start(models) as server:
        os.killpg(os.getpgid(triton_of(server)), signal.SIGTERM)
        assert eventually(lambda: not server.running)
        server.stop()
        assert server.failure is None
    assert not server.log.path.exists()


@pytest.mark.heavy
def test_waiting_for_the_server_ends_if_its_supervisor_is_killed(models):
    with start(models) as server:
        processes, triton = server.processes, triton_of(server)
        for stub in processes:
            if stub != triton:
                os.kill(stub, signal.SIGSTOP)  # so that it can't end by itself
        os.kill(os.getsid(processes[0]), signal.SIGKILL)
        with pytest.raises(
            TandemError, match=r"^Triton's supervisor was killed by signal 9; log: "
        ):
            server.wait()
    assert not any(map(alive, processes))
    assert not leftovers(server.shm_prefix)
    server.log.path.unlink()
