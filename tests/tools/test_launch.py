"""Launch modes of a TensorRT deployment: single process, one rank per GPU, or orchestrator."""

import re
import shlex

import pytest
from golden import check_golden
from llamas import TENSORRT_PROFILES

from tandem.tools.cli import main
from tandem.tools.profiles import deployment
from tandem.tools.triton.launch import launch_command
from tandem.tools.trtllm import trt_engines

LARGE = "llama-3.1-405b"
LOOKUP = "llama-2-13b-prompt-lookup"
SMALL_DRAFT = {"engines.draft.tp_size": 1, "engines.draft.device_ids": [4]}
SERVER = ("tritonserver", "--model-repository=/repository")
ENDPOINTS = ("--http-port=8000",)
ONE_PROCESS = [*SERVER, *ENDPOINTS, "--backend-config=python,shm-region-prefix-name=p-"]


@pytest.fixture
def lookup(changed):
    """A profile with one engine on four GPUs."""
    return changed(LOOKUP, {"engines.target.tp_size": 4, "engines.target.device_ids": [0, 1, 2, 3]})


def launch(path):
    return launch_command(deployment.load(path).profile, SERVER, ENDPOINTS, "p-")


def ranks(command):
    """Return the tritonserver commands in an mpirun command."""
    text = shlex.join(command)
    return [part.split("-n 1 ", 1)[1].split() for part in text.split(" : ")]


@pytest.mark.parametrize("name", TENSORRT_PROFILES)
def test_launch_commands_equal_the_golden_files(name, shipped, tmp_path, capsys):
    arguments = ["render", "--profile", str(shipped(name)), "--output", str(tmp_path / "models")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path), "")
    script = (tmp_path / "models" / "serve.sh").read_text()
    check_golden(f"{name}/launch.txt", f"{printed}\n{script}")


def test_engines_of_other_kinds_are_served_by_one_process(embedded_profile):
    assert launch(embedded_profile) == ONE_PROCESS
    assert launch_command(None, SERVER, ENDPOINTS, "p-") == ONE_PROCESS


@pytest.mark.parametrize("devices", [[0], [1]])
def test_two_engines_on_one_gpu_each_need_a_single_process(changed, devices):
    assert launch(changed("llama-2-7b-13b", {"engines.draft.device_ids": devices})) == ONE_PROCESS


def test_an_engine_on_several_gpus_has_one_process_per_gpu(lookup):
    command = launch(lookup)
    assert "-x" not in command
    first, *others = ranks(command)
    assert first == [*SERVER, *ENDPOINTS, "--backend-config=python,shm-region-prefix-name=p-0-"]
    assert [rank[-1].rpartition("=")[2] for rank in others] == ["p-1-", "p-2-", "p-3-"]
    for rank in others:
        assert "--model-control-mode=explicit" in rank
        assert [word for word in rank if "load-model" in word] == ["--load-model=target"]
        assert "--allow-http=false" in rank
        assert not set(ENDPOINTS) & set(rank)


@pytest.mark.parametrize(
    ("draft", "gpus"), [({}, 4), (SMALL_DRAFT, 5), ({"engines.draft.device_ids": [4, 5, 6, 7]}, 8)]
)
def test_two_engines_with_many_gpus_use_an_orchestrator(changed, draft, gpus):
    command = launch(changed(LARGE, draft))
    assert command[:10] == [
        *("mpirun", "--allow-run-as-root", "--bind-to", "none", "-x", "TRTLLM_ORCHESTRATOR=1"),
        *("-x", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1", "-n", "1"),
    ]
    assert len(ranks(command)) == 1
    assert command[-2 - gpus :] == [
        *("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"),
        *(f"--cuda-memory-pool-byte-size={number}:0" for number in range(gpus)),
    ]


@pytest.fixture
def two_nodes(changed):
    eight = {"tp_size": 16, "num_nodes": 2, "device_ids": list(range(8))}
    return changed(LOOKUP, {f"engines.target.{key}": value for key, value in eight.items()})


def test_a_profile_for_two_nodes_has_one_rank_per_gpu(two_nodes):
    assert len(ranks(launch(two_nodes))) == 16


def test_up_rejects_a_profile_for_two_nodes(two_nodes, capsys):
    for engine in trt_engines(deployment.load(two_nodes).profile).values():
        engine.engine_dir.mkdir(parents=True)
        (engine.engine_dir / "config.json").write_text("{}")
    assert main(["up", "--profile", str(two_nodes), "--gateway-port", "0"]) == 1
    assert "llama-2-13b-prompt-lookup needs 2 nodes" in capsys.readouterr().err


def test_engines_must_be_built_before_they_are_served(shipped, capsys):
    assert main(["up", "--profile", str(shipped(LARGE)), "--gateway-port", "0"]) == 1
    assert re.search("draft: no engine in .*; build it", capsys.readouterr().err)
