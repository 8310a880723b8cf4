"""A server starts, says when it is ready or why it is not, and leaves nothing behind."""

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
from live_triton import alive, eventually, leftovers, memory_bytes, write_model
from scale import first_of

from tandem.tools.errors import TandemError
from tandem.tools.triton import server as servers
from tandem.tools.triton.server import ANY_PORTS, LOOPBACK, Ports, TritonServer, claim_ports

START_AND_TELL = """
import sys, time
from pathlib import Path
from tandem.tools.triton.server import TritonServer

server = TritonServer(Path(sys.argv[1]), thread_pool_size=8)
server.start()
print(server.shm_prefix, *server.processes, flush=True)
time.sleep(600)
"""


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path, "echo")
    return tmp_path


def start(models, **options):
    return TritonServer(models, thread_pool_size=8, **options)


def refusal(models, **options):
    """The one line that a server that cannot start is answered with."""
    with pytest.raises(TandemError) as refused:
        start(models, **options).start()
    text = str(refused.value)
    assert "\n" not in text
    if "log: " in text:
        Path(text.rpartition("log: ")[2]).unlink()
    return text


def test_a_path_with_a_space_is_refused_at_once(tmp_path):
    """Triton would wait for its Python models until it was killed."""
    write_model(tmp_path / "a b", "echo")
    assert refusal(tmp_path / "a b") == (
        f"Triton can't serve a path with a space: {tmp_path / 'a b'}; if Tandem made it, set "
        "TMPDIR or XDG_CACHE_HOME"
    )


def test_a_models_process_knows_how_much_shared_memory_it_has_left(tmp_path):
    """`Sender` asks before an end that must not be lost; nothing documents it."""
    pool = "__import__('sys').modules['c_python_backend_utils'].shared_memory"
    write_model(tmp_path, "echo", initialize=f"assert 2**19 < {pool}.free_memory() < 2**20")
    with start(tmp_path) as server:
        assert ask(server) == 7


def test_a_server_that_is_not_ready_in_time_is_refused_with_what_is_missing(models):
    assert refusal(models, startup_timeout=0.01).partition("; log: ")[0] == (
        "Triton is not ready after 0.01 s, waiting for echo; raise 'timeouts.startup' if it needs "
        "longer"
    )


def ask(server):
    """Send a 7 to the echo model; return what comes back."""
    with client.InferenceServerClient(server.grpc_url) as connection:
        sent = client.InferInput("X", [1, 1], "INT32")
        sent.set_data_from_numpy(np.full((1, 1), 7, np.int32))
        return connection.infer("echo", [sent]).as_numpy("Y").item()


def test_server_answers_when_it_is_entered(models):
    with start(models) as server:
        assert ask(server) == 7
        with urllib.request.urlopen(f"http://{server.http_url}/v2/health/ready") as answer:
            assert answer.status == 200
        with urllib.request.urlopen(server.metrics_url) as answer:
            assert b"nv_inference_request_success" in answer.read()


def test_server_reports_its_progress_when_it_starts(models):
    seen = []
    with start(models, on_progress=seen.append):
        assert seen[0].startswith("0 of 1 models, waiting for echo (")


def test_stopped_server_leaves_nothing_behind(models):
    with start(models) as server:
        processes, log = server.processes, server.log.path
        folder = Path(f"/proc/{processes[0]}/cwd").readlink()
        assert len(processes) == 2  # Triton and the stub of echo
        assert leftovers(server.shm_prefix)
    assert not any(map(alive, processes))
    assert not leftovers(server.shm_prefix)
    assert not log.exists()
    assert not folder.exists()


def test_server_stops_when_an_idle_stream_is_open(models, monkeypatch):
    monkeypatch.setattr(servers, "STOP_SECONDS", 1.0)
    with start(models) as server:
        processes = server.processes
        connection = client.InferenceServerClient(server.grpc_url)
        connection.start_stream(lambda result, error: None)
    assert not any(map(alive, processes))
    assert not leftovers(server.shm_prefix)
    connection.close()


def test_server_stops_when_a_stub_was_killed(models):
    with start(models) as server:
        os.kill(max(server.processes), signal.SIGKILL)
    assert not leftovers(server.shm_prefix)


@pytest.mark.parametrize("victim", ["starter", "guard"])
def test_nothing_is_left_when_a_process_is_killed(models, victim):
    command = [sys.executable, "-c", START_AND_TELL, str(models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        prefix, *told = starter.stdout.readline().split()
        processes = [int(pid) for pid in told]
        guard = os.getsid(processes[0])
        os.kill(starter.pid if victim == "starter" else guard, signal.SIGKILL)
        assert eventually(lambda: not any(map(alive, processes)))
        starter.kill()
    if victim == "starter":
        assert eventually(lambda: not alive(guard) and not leftovers(prefix))


def test_model_that_fails_is_named_with_its_reason(models):
    write_model(models, "broken", initialize="raise ValueError('no such language')")
    text = refusal(models)
    assert text.startswith("model 'broken' failed to load: ValueError: no such language; log: ")


def test_model_whose_process_dies_is_named(models):
    write_model(models, "mortal", initialize="import os; os._exit(3)")
    assert refusal(models).startswith("model 'mortal' failed to load: ")


def test_model_with_a_wrong_configuration_is_named(models):
    (models / "echo" / "config.pbtxt").write_text("nonsense")
    assert "'echo'" in refusal(models)


def test_folder_without_models_is_refused(tmp_path):
    assert refusal(tmp_path) == f"{tmp_path}: no models here (no */config.pbtxt)"


def test_busy_port_is_refused(models):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        text = refusal(models, ports=Ports(0, port, 0))
    assert text == (
        f"cannot listen on 127.0.0.1: {port} (grpc): Address already in use; "
        "say --grpc-port 0, or another --address"
    )


@pytest.mark.parametrize("endpoint", first_of("grpc", "http", "metrics"))
def test_port_that_another_took_meanwhile_is_given_up_for_a_free_one(models, monkeypatch, endpoint):
    with socket.create_server((LOOPBACK, 0)) as other:
        taken = [replace(claim_ports(ANY_PORTS, LOOPBACK), **{endpoint: other.getsockname()[1]})]
        monkeypatch.setattr(
            servers, "claim_ports", lambda *asked: taken.pop() if taken else claim_ports(*asked)
        )
        with start(models) as server:
            assert ask(server) == 7


def test_server_reports_what_it_waits_for_when_it_stops(models):
    server = start(models)
    server.start()
    seen = []
    server.stop(seen.append)
    assert seen[0].startswith("waiting for Triton, echo (")


def test_impatient_user_leaves_nothing_behind(models):
    """An interrupt while a server that would not stop is stopped kills it, stubs and all."""

    def interrupt(_):
        raise KeyboardInterrupt

    with start(models) as server:
        processes = server.processes
        for process in processes:
            os.kill(process, signal.SIGSTOP)  # none of them can end by itself
        with pytest.raises(KeyboardInterrupt):
            server.stop(interrupt)
        assert not any(map(alive, processes))
        assert not leftovers(server.shm_prefix)
        assert not server.running


def test_waiting_ends_with_the_reason_when_the_server_dies(models):
    with start(models) as server:
        os.kill(min(server.processes), signal.SIGKILL)
        with pytest.raises(TandemError, match=r"Triton ended: .*; log: "):
            server.wait()
    assert server.log.path.exists()
    server.log.path.unlink()


def test_nothing_is_left_when_the_guard_is_killed(models):
    with start(models) as server:
        processes = server.processes
        for stub in processes:
            if stub != min(processes):
                os.kill(stub, signal.SIGSTOP)  # none can end by itself, as it seldom does
        os.kill(os.getsid(processes[0]), signal.SIGKILL)
        with pytest.raises(TandemError, match=r"^Triton's guard was killed by signal 9; log: "):
            server.wait()
    assert not any(map(alive, processes))
    assert not leftovers(server.shm_prefix)
    server.log.path.unlink()


def test_shared_server_serves_every_model_of_the_profile(server, embedded):
    with client.InferenceServerClient(server.grpc_url) as connection:
        index = connection.get_model_repository_index().models
    assert {model.name for model in index if model.state == "READY"} == set(server.models)
    assert {entry.name for entry in embedded.profile.entries} < set(server.models)


def test_all_processes_together_take_less_than_a_gigabyte_and_a_half(server):
    assert memory_bytes(server.processes) < 1.5 * 10**9


def test_two_servers_live_beside_each_other(models):
    with start(models) as one, start(models) as other:
        assert ask(one) == ask(other) == 7
        one.stop()
        assert ask(other) == 7
