"""The command `tandem up` serves, prints its addresses, and stops without leftovers."""

import json
import os
import re
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import write_pair, write_tokenizer
from entries import ask_one
from live_triton import alive, eventually, leftovers, triton_of
from safetensors.numpy import save_file
from scale import first_of
from up import ANY_PORTS, gateway_of, read_greeting, stubs_of, up

from tandem.tools import cli as command
from tandem.tools.triton.launch import PREFIX
from tandem.tools.triton.server import SECONDS_BETWEEN_LOOKS, TritonServer
from tandem.tools.triton.supervisor import process_name


def shared_memory_of(process):
    return leftovers(f"{PREFIX}{process.pid}-")


def test_up_serves_at_the_printed_addresses_until_a_signal():
    with up("--profile", "emulated-zero") as process:
        greeting = read_greeting(process)
        page = gateway_of(greeting)
        body = json.dumps({"prompt": "def main():", "max_tokens": 4, "ignore_eos": True}).encode()
        asked = urllib.request.Request(
            f"{page}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        curl = shlex.split(greeting.splitlines()[-1])
        assert curl[:2] == ["curl", "-N"]
        with urllib.request.urlopen(curl[2], data=curl[4].encode()) as answer:
            chunks = [json.loads(line[5:]) for line in answer if line.startswith(b"data:")]
        assert chunks[-1]["finish_reason"]
        assert shared_memory_of(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
        assert not shared_memory_of(process)


def test_up_finishes_direct_requests_before_triton_stops():
    """A Triton that stops rejects the calls between its models, so every round would fail."""
    with up("--profile", "emulated-70b-1b", "--no-warm-up", "--no-gateway") as process:
        curl = shlex.split(read_greeting(process).splitlines()[-1])
        asked = json.loads(curl[4]) | {"drafter": "none", "max_tokens": 100}
        with urllib.request.urlopen(curl[2], data=json.dumps(asked).encode()) as answer:
            chunks = [json.loads(line[5:]) for line in signaled_after_first(answer, process)]
        assert chunks[-1]["finish_reason"] == "length"
        assert process.wait(30) == 0


def signaled_after_first(answer, process):
    """Yield the lines with data, and stop the process after the first one."""
    lines = (line for line in answer if line.startswith(b"data:"))
    yield next(lines)
    process.send_signal(signal.SIGTERM)
    yield from lines


@pytest.mark.heavy
def test_a_second_ctrl_c_kills_the_server():
    with up("--profile", "emulated-zero") as process:
        read_greeting(process)
        processes = stubs_of(process)
        assert len(processes) > 7  # Triton and one stub per model
        for number in processes:
            os.kill(number, signal.SIGSTOP)  # so that no process can end by itself
        process.send_signal(signal.SIGINT)
        while "Ctrl-C kills it" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
        assert not any(map(alive, processes))
        assert not shared_memory_of(process)


def test_up_ends_if_a_required_process_ends():
    """Otherwise, Triton would still report that it is ready, but every request would fail."""
    with up("--profile", "emulated-zero") as process:
        read_greeting(process)
        processes = stubs_of(process)
        # The loop could hold a lock of Triton's shared memory, and then Triton would end first.
        os.kill(stub_of(processes, "preprocessing"), signal.SIGKILL)
        assert process.wait(120) == 1
        said = process.stderr.read()
        assert "the process of model 'preprocessing' ended, and Triton doesn't restart it" in said
        assert "Traceback" not in said
        assert not any(map(alive, processes))
        assert not shared_memory_of(process)


@pytest.mark.parametrize("is_noticed", first_of(True, False))
def test_a_crash_is_an_error_even_if_ctrl_c_follows(capsys, monkeypatch, is_noticed):
    wait = TritonServer.wait

    def crash(server):
        os.kill(triton := triton_of(server), signal.SIGKILL)
        assert eventually(lambda: triton not in server.processes)
        try:
            if is_noticed:
                wait(server)
        finally:
            raise KeyboardInterrupt

    monkeypatch.setattr("tandem.tools.triton.server.EXIT_GRACE_SECONDS", 60.0)
    monkeypatch.setattr(TritonServer, "wait", crash)
    assert command.main(["up", "--profile", "emulated-zero", *ANY_PORTS]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("tandem: Triton was killed by signal 9; log: ")
    Path(said.rpartition("log: ")[2]).unlink()


@pytest.mark.heavy
def test_up_without_a_terminal_reports_progress_and_continues_if_the_draft_engine_dies():
    with up("--profile", "emulated-zero", "--no-gateway") as process:
        shown = read_greeting(process)
        assert "page" not in shown
        grpc = re.search(r"gRPC +(\S+)", shown)[1]
        generate = next(line for line in shown.splitlines() if "tandem generate" in line)
        assert generate.split()[:4] == ["tandem", "generate", "--url", grpc]
        os.kill(stub_of(stubs_of(process), "draft"), signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3 * SECONDS_BETWEEN_LOOKS)
        assert ask_one(SimpleNamespace(grpc_url=grpc), "bls", "x", max_tokens=4).ids
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
        assert process.wait(120) == 0
    assert said[:2] == ["starting Triton", "warming up"]
    assert "stopping Triton (Ctrl-C kills it)" in said


def stub_of(processes, model):
    """Return the process id of a model."""
    return next(number for number in processes if process_name(number) == model)


@pytest.mark.heavy
def test_up_stops_on_a_signal_during_startup(capsys, monkeypatch):
    ours = f"{PREFIX}{os.getpid()}-"
    before = set(leftovers(ours))

    def is_ready(*_):
        if set(leftovers(ours)) - before:  # Triton is starting
            signal.raise_signal(signal.SIGINT)
        return False

    monkeypatch.setattr("tandem.tools.triton.server.all_exist", is_ready)
    assert command.main(["up", "--profile", "emulated-zero", *ANY_PORTS]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert set(leftovers(ours)) <= before


@pytest.mark.heavy
def test_a_checkpoint_that_cannot_be_loaded_is_reported_in_one_line(tmp_path):
    target = tmp_path / "target"
    write_pair(tmp_path)
    write_tokenizer(target)
    save_file({"lm_head.weight": np.zeros((1, 1), np.float32)}, target / "model.safetensors")
    with up("--target", target) as process:
        assert process.wait(120) == 1
        shown = process.stderr.read().strip().splitlines()
    assert re.match(r"tandem: model 'target' failed to load: (?!model).+; log: .+\.log$", shown[-1])
    assert [line for line in shown[:-1] if not line.startswith("starting Triton")] == []
    Path(shown[-1].rpartition("log: ")[2]).unlink()
