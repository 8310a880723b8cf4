"""Plain Triton can serve a rendered repository from any folder, without Tandem."""

import os
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from entries import ask_one, said
from live_triton import eventually, lasting_ports
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from tandem.tools.triton import repository, supervisor
from tandem.tools.triton.install import find_triton
from tandem.tools.triton.server import LOOPBACK, Ports

from .conftest import emulated_zero

pytestmark = pytest.mark.heavy

PROMPTS = ["def add(", "import json\n", "print("]
# A separate process compiles the second guide.
GUIDES = [{}, {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[a-z]{3} [0-9]+"}]
WRONG = "raise ImportError('this is the wrong one')\n"
OURS = ("bls", "contract", "engines", "preprocessing", "postprocessing")


def plant_wrong_packages(folder):
    for package in OURS:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(WRONG)


@pytest.fixture
def environment(tmp_path):
    """A Python environment with the models' dependencies, but broken packages of our names."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    # Python searches paths that a .pth file lists, but ignores .pth files in these paths, such as
    # the editable install of Tandem.
    (packages / "installed.pth").write_text(sysconfig.get_paths()["purelib"])
    plant_wrong_packages(packages)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (tmp_path / "venv" / "bin" / "tritonserver").symlink_to(find_triton().binary)
    return kept | {
        "PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join(map(str, find_triton().library_path)),
    }


@contextmanager
def bare_triton(models, environment, working_directory):
    """Run tritonserver as the repository documents it, and yield its address."""
    install, ports = find_triton(), Ports(*lasting_ports(3))
    prefix = f"tandem-test-{os.getpid()}-"
    command = [
        *(sys.executable, supervisor.__file__, "10", prefix),
        *("sh", models / "serve.sh", f"--backend-directory={install.backends}"),
        *(f"--http-port={ports.http}", f"--grpc-port={ports.grpc}"),
        *(
            f"--metrics-port={ports.metrics}",
            f"--backend-config=python,shm-region-prefix-name={prefix}",
        ),
    ]
    log = Path(models).with_suffix(".log")
    with (
        log.open("w") as output,
        subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=working_directory,
            env=environment,
            start_new_session=True,
        ) as server,
        InferenceServerClient(f"{LOOPBACK}:{ports.grpc}") as connection,
    ):
        assert eventually(lambda: server.poll() is not None or is_ready(connection), 120)
        assert server.poll() is None, log.read_text()
        yield SimpleNamespace(grpc_url=f"{LOOPBACK}:{ports.grpc}")
        server.stdin.close()


def is_ready(connection):
    try:
        return connection.is_server_ready()
    except InferenceServerException:
        return False


def test_plain_triton_serves_a_repository_that_was_moved(emulated, environment, tmp_path):
    repository.render(emulated_zero(tmp_path), tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    plant_wrong_packages(tmp_path / "work")
    with bare_triton(tmp_path / "elsewhere", environment, tmp_path / "work") as bare:
        answers = answers_of(bare)
    assert answers == answers_of(emulated)


def answers_of(server):
    asked = [(prompt, guide) for prompt in PROMPTS for guide in GUIDES]
    return said(ask_one(server, "bls", prompt, max_tokens=32, **guide) for prompt, guide in asked)
