"""The wheel contains one complete package, and installed commands work in an empty folder."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

ANY_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
pytestmark = pytest.mark.heavy
GRPC = re.compile(r"grpc\D*(127\.0\.0\.1:\d+)", re.IGNORECASE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The path of the wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    finish([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment with the wheel and its dependencies, but without a checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Python ignores .pth files in folders that a .pth file adds, so the checkout isn't found.
    here = sysconfig.get_path("purelib")
    (site / "dependencies.pth").write_text("\n".join({here, *search_path()}) + "\n")
    return folder / "bin" / "python"


def search_path():
    """Return the site-packages folders on sys.path."""
    found = {Path(entry) for entry in sys.path if "site-packages" in entry}
    return {str(entry) for entry in found if entry.is_dir()}


def finish(command, **options):
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tandem(python, *arguments, cwd):
    """Run a command of the installed package in a folder; return its output."""
    return finish([python, "-m", "tandem", *arguments], cwd=cwd, env=environment(python))


def environment(python):
    """Return the variables of a shell with the environment activated."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return clean | {"PATH": f"{python.parent}:{os.environ['PATH']}"}


def test_the_wheel_installs_only_the_package_tandem(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tandem"}


def test_the_wheel_contains_types_profiles_shims_and_the_demo_pair(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for path in ("profiles", "model_repository", "demo"):
        files = [*(ROOT / "tandem" / path).rglob("*.*")]
        assert files
        for file in files:
            if file.suffix in {".yaml", ".pbtxt", ".json", ".jsonl", ".safetensors"}:
                assert str(file.relative_to(ROOT)) in names
    assert "tandem/py.typed" in names


def test_an_installed_command_renders_a_working_repository(installed, tmp_path):
    where = finish([installed, "-c", "import tandem; print(tandem.__file__)"], cwd=tmp_path)
    assert str(ROOT) not in where
    shown = tandem(installed, "render", "--output", "models", cwd=tmp_path)
    assert "preprocessing" in shown
    shim = tmp_path / "models" / "bls_stream" / "1"
    assert (shim / "model.py").is_file()
    assert (shim / "tandem" / "bls" / "loop.py").is_file()


def test_an_installed_command_serves_requests(installed, tmp_path):
    serve = [installed, "-m", "tandem", "up", "--profile", "emulated-zero", *ANY_PORTS]
    with subprocess.Popen(
        serve, cwd=tmp_path, env=environment(installed), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            url = next(filter(None, map(GRPC.search, server.stdout)))[1]
            shown = tandem(installed, "generate", "--url", url, "hello", cwd=tmp_path)
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)
    assert shown.strip()
    assert server.returncode == 0
