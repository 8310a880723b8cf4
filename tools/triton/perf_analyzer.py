"""Finds the real perf_analyzer, Triton's load generator, or unpacks it once into the cache folder.

PyPI's package of that name is a stub on most systems. `tritonclient` 2.51.0 carries a binary that
works; that version is downloaded and unpacked, never installed. Two of the libraries that it wants
stand under other names among those of `nvidia-pytriton`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tandem.tools.errors import TandemError
from tandem.tools.triton.install import WHEEL, cache_folder, library_path

PROGRAM = "perf_analyzer"
VERSION = "2.51.0"
PACKAGE = f"tritonclient=={VERSION}"
MEMBER = f"tritonclient-{VERSION}.data/data/bin/{PROGRAM}"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@dataclass(frozen=True)
class PerfAnalyzer:
    """The program, and the folder of libraries that it needs where the system has none."""

    binary: Path
    libraries: Path | None = None

    @property
    def command(self) -> list[str]:
        if self.libraries is None:
            return [str(self.binary)]
        return ["env", f"LD_LIBRARY_PATH={library_path(self.libraries)}", str(self.binary)]


def expected_perf_analyzer() -> PerfAnalyzer:
    """Return the one on PATH if it runs, else the place where ours is or will be unpacked."""
    found = shutil.which(PROGRAM)
    if found and _runs(PerfAnalyzer(Path(found))):
        return PerfAnalyzer(Path(found))
    home = cache_folder() / f"perf_analyzer-{VERSION}"
    return PerfAnalyzer(home / PROGRAM, home / "lib")


def find_perf_analyzer() -> PerfAnalyzer:
    """Return the one on PATH if it runs, else ours; raise TandemError where neither can be had."""
    ours = expected_perf_analyzer()
    if ours.libraries is None:
        return ours
    if not is_unpacked(ours):
        _unpack(ours)
    if not _runs(ours):
        raise TandemError(f"{ours.binary} does not run here; put a {PROGRAM} on PATH")
    return ours


def is_unpacked(program: PerfAnalyzer) -> bool:
    """Whether the program exists; raise TandemError where the folder cannot be searched."""
    try:
        return program.binary.is_file()
    except OSError as error:
        raise _no_cache(program.binary.parent, error) from error


def _no_cache(folder: Path, error: OSError) -> TandemError:
    return TandemError(
        f"cannot unpack {PROGRAM} into {folder}: {error.strerror}; set XDG_CACHE_HOME to a "
        "folder of yours with 20 MB of room"
    )


def _runs(program: PerfAnalyzer) -> bool:
    try:
        asked = subprocess.run(
            [*program.command, "--version"],
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _unpack(ours: PerfAnalyzer) -> None:
    home = ours.binary.parent
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".unpacking-") as folder:
            made = Path(folder, "made")
            (made / "lib").mkdir(parents=True)
            with zipfile.ZipFile(_download(Path(folder))) as wheel:
                (made / PROGRAM).write_bytes(wheel.read(MEMBER))
            (made / PROGRAM).chmod(0o755)
            _link_libraries(made / "lib")
            shutil.rmtree(home, ignore_errors=True)  # what is there has no program in it
            made.rename(home)
    except OSError as error:
        raise _no_cache(home, error) from error


def _download(folder: Path) -> Path:
    """Fetch the wheel that carries the program; the `tritonclient` in use stays as it is."""
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", folder, PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = [*folder.glob("tritonclient-*.whl")]
    if asked.returncode or not wheels:
        reason = asked.stderr.strip().splitlines()[-1:] or ["no wheel for this machine"]
        raise TandemError(f"pip cannot download {PACKAGE}: {reason[0]}; put a {PROGRAM} on PATH")
    return wheels[0]


def _link_libraries(folder: Path) -> None:
    """Give the libraries of `nvidia-pytriton` the names that the program asks for."""
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        return  # it may be that the system has them
    theirs = Path(spec.origin).parent.parent / f"{WHEEL.replace('-', '_')}.libs"
    for name, pattern in LIBRARIES.items():
        for library in sorted(theirs.glob(pattern))[:1]:
            (folder / name).symlink_to(library)
