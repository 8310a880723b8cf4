"""Finds perf_analyzer, Triton's load generator, or unpacks it once into the cache folder.

The PyPI package of that name is a stub on most systems. The wheel of `tritonclient` 2.51.0 contains
a working binary, so that wheel is downloaded and unpacked, but not installed. Two of the libraries
that the binary needs are in `nvidia-pytriton`, under other names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from tandem.tools.errors import TandemError
from tandem.tools.folders import atomic_folder, cache_folder
from tandem.tools.triton.install import WHEEL, library_path

PROGRAM = "perf_analyzer"
VERSION = "2.51.0"
PACKAGE = f"tritonclient=={VERSION}"
MEMBER = f"tritonclient-{VERSION}.data/data/bin/{PROGRAM}"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


def find_perf_analyzer() -> list[str]:
    """Return the command for perf_analyzer: from PATH if it runs, else from the cache folder.

    Raises TandemError if neither runs.
    """
    found = shutil.which(PROGRAM)
    if found and _runs([found]):
        return [found]
    home = cache_folder() / f"perf_analyzer-{VERSION}"
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
        [sys.executable, "-m", "pip", "download", *options, "--dest", folder, PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = [*folder.glob("tritonclient-*.whl")]
    if asked.returncode or not wheels:
        reason = asked.stderr.strip().splitlines()[-1:] or ["no wheel for this machine"]
        raise TandemError(f"can't download {PACKAGE}: {reason[0]}; put {PROGRAM} on PATH")
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
