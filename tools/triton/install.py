"""Finds Triton on this machine, and perf_analyzer, its load generator.

A system installation (``/opt/tritonserver``) is used unchanged. Otherwise the server in the
``nvidia-pytriton`` wheel is copied once into a cache folder, together with the Python backend's
stub for this interpreter's version. pytriton's API isn't used.

perf_analyzer's package on PyPI is a stub on most systems. The wheel of `tritonclient` 2.51.0 has a
working binary, so that wheel is downloaded and unpacked into the cache folder, but not installed.
Two of the libraries that the binary needs are in `nvidia-pytriton`, under other names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from tandem.tools.errors import TandemError, install_extra
from tandem.tools.folders import atomic_folder, cache_folder, copy_failure

SYSTEM_TRITON = Path("/opt/tritonserver")
WHEEL = "nvidia-pytriton"
SERVERS = {"0.7.0": "2.51.0"}  # wheel version -> server version, which the wheel doesn't state
STUB = "triton_python_backend_stub"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PROGRAM = "perf_analyzer"
CLIENT_VERSION = "2.51.0"
CLIENT = f"tritonclient=={CLIENT_VERSION}"
MEMBER = f"tritonclient-{CLIENT_VERSION}.data/data/bin/{PROGRAM}"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@dataclass(frozen=True)
class TritonInstall:
    """An installation of Triton that can be started.

    version: the server's version, or "?" if it is unknown. library_path: folders to put first in
    LD_LIBRARY_PATH, in this order. wheel: the version of the wheel that contains the server; None
    for a system installation.
    """

    version: str
    binary: Path
    backends: Path
    library_path: tuple[Path, ...]
    wheel: str | None = None

    @property
    def stub_python(self) -> str | None:
        """The Python version that the Python backend's models run on."""
        stub = self.backends / "python" / STUB
        found = re.search(rb"libpython(3\.\d+)\.so", stub.read_bytes())
        return found.group(1).decode() if found else None

    def environment(self) -> dict[str, str]:
        """Return the environment for the server.

        A stub finds this interpreter's packages through PATH, and libpython through
        LD_LIBRARY_PATH.
        """
        path = os.environ.get("PATH", os.defpath)
        return os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
            "LD_LIBRARY_PATH": library_path(*self.library_path),
        }


def library_path(*folders: Path) -> str:
    """Return LD_LIBRARY_PATH with these folders in front."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return os.pathsep.join([*map(str, folders), *([inherited] if inherited else [])])


def find_triton() -> TritonInstall:
    """Return the Triton to start; raise TandemError if none can run here."""
    libpython = find_libpython()
    if libpython is None:
        raise TandemError(
            f"{sys.executable} has no shared libpython, which Triton's Python backend needs; "
            "use a Python built with --enable-shared (the distribution's own, pyenv with "
            "PYTHON_CONFIGURE_OPTS=--enable-shared, or conda)"
        )
    if (SYSTEM_TRITON / "bin" / "tritonserver").is_file():
        version = SYSTEM_TRITON / "TRITON_VERSION"
        return TritonInstall(
            version=version.read_text().strip() if version.is_file() else "?",
            binary=SYSTEM_TRITON / "bin" / "tritonserver",
            backends=SYSTEM_TRITON / "backends",
            library_path=(libpython.parent, SYSTEM_TRITON / "lib"),
        )
    return _wheel_triton(libpython.parent)


def find_libpython() -> Path | None:
    """Return the path of this interpreter's shared libpython, or None if it has none."""
    name = f"libpython{PYTHON}.so.1.0"
    mapped = re.search(
        rf"\S*/{re.escape(name)}$", Path("/proc/self/maps").read_text(), re.MULTILINE
    )
    if mapped:
        return Path(mapped.group())
    base = Path(sys.base_prefix) / "lib"
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = (Path(sysconfig.get_config_var("LIBDIR") or base), base, base / multiarch)
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _wheel_triton(python_lib: Path) -> TritonInstall:
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise TandemError(
            f"no Triton here: {SYSTEM_TRITON} doesn't exist and {WHEEL} isn't installed; "
            f"{install_extra('embedded')}"
        )
    if int(metadata.version("numpy").split(".")[0]) > 1:
        raise TandemError(
            f"numpy {metadata.version('numpy')} corrupts every tensor in the Python backend of "
            f"{WHEEL}'s Triton; pip install 'numpy<2' (needs Python 3.10 to 3.12)"
        )
    package = Path(spec.origin).parent
    version = metadata.version(WHEEL)
    home = _assemble(package / "tritonserver", version)
    return TritonInstall(
        version=SERVERS.get(version, "?"),
        wheel=version,
        binary=home / "bin" / "tritonserver",
        backends=home / "backends",
        library_path=(python_lib, package.parent / "nvidia_pytriton.libs"),
    )


def _assemble(source: Path, version: str) -> Path:
    """Return the cache folder with the wheel's server and the stub.

    If the folder is missing, it is created and the server and the stub are copied there.
    """
    stub = source / "python_backend_stubs" / PYTHON / STUB
    if not stub.is_file():
        known = sorted((p.name for p in stub.parent.parent.iterdir()), key=lambda v: int(v[2:]))
        raise TandemError(
            f"{WHEEL} {version} doesn't support Python {PYTHON}; use one of {', '.join(known)}"
        )
    home = cache_folder() / f"triton-{version}-python{PYTHON}"
    try:
        if home.is_dir():
            return home
        with atomic_folder(home, replace=False) as fresh:
            for folder in ("bin", "backends", "caches"):
                shutil.copytree(source / folder, fresh / folder)
            shutil.copy2(stub, fresh / "backends" / "python")
    except OSError as error:
        _, reason = copy_failure(error)
        raise TandemError(
            f"can't set up Triton in {home}: {reason}; set XDG_CACHE_HOME to a writable folder "
            "with 40 MB of free space"
        ) from error
    return home


def find_perf_analyzer() -> list[str]:
    """Return the command for perf_analyzer: from PATH if it runs, else from the cache folder.

    Raises TandemError if neither runs.
    """
    found = shutil.which(PROGRAM)
    if found and _runs([found]):
        return [found]
    home = cache_folder() / f"perf_analyzer-{CLIENT_VERSION}"
    try:
        if not (home / PROGRAM).is_file():
            _unpack(home)
        _link_libraries(home / "lib")
    except OSError as error:
        raise TandemError(
            f"can't unpack {PROGRAM} into {home}: {error.strerror}; set XDG_CACHE_HOME to a "
            "writable folder with 20 MB of free space"
        ) from error
    ours = ["env", f"LD_LIBRARY_PATH={library_path(home / 'lib')}", str(home / PROGRAM)]
    if not _runs(ours):
        raise TandemError(f"can't run {home / PROGRAM} here; put {PROGRAM} on PATH")
    return ours


def _runs(command: list[str]) -> bool:
    try:
        asked = subprocess.run(
            [*command, "--version"], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _unpack(home: Path) -> None:
    with tempfile.TemporaryDirectory() as downloads, atomic_folder(home) as fresh:
        with zipfile.ZipFile(_download(Path(downloads))) as wheel:
            (fresh / PROGRAM).write_bytes(wheel.read(MEMBER))
        (fresh / PROGRAM).chmod(0o755)
        (fresh / "lib").mkdir()


def _download(folder: Path) -> Path:
    """Download the `tritonclient` wheel that contains the program, without installing it."""
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", folder, CLIENT],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = [*folder.glob("tritonclient-*.whl")]
    if asked.returncode or not wheels:
        reason = asked.stderr.strip().splitlines()[-1:] or ["no wheel for this machine"]
        raise TandemError(f"can't download {CLIENT}: {reason[0]}; put {PROGRAM} on PATH")
    return wheels[0]


def _link_libraries(folder: Path) -> None:
    """Link the libraries of `nvidia-pytriton` under the names that the program loads.

    Existing links are replaced if the environment that they point into has been deleted.
    """
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        return  # the system may have the libraries
    theirs = Path(spec.origin).parent.parent / f"{WHEEL.replace('-', '_')}.libs"
    for name, pattern in LIBRARIES.items():
        for library in sorted(theirs.glob(pattern))[:1]:
            link = folder / name
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(library)
