"""GGUF files: the tokenizer and the configuration are read once and kept in Tandem's cache."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tandem.engines.llamacpp import api
from tandem.engines.llamacpp.settings import GGUF_FILE
from tandem.tools.errors import TandemError, install_extra
from tandem.tools.folders import atomic_folder, cache_folder
from tandem.tools.triton.server import status_line

MAGIC = b"GGUF"
STAMP = "source.json"
FORMAT = 2  # raise it if the same file gives another folder
PACKAGES = ("transformers", "gguf", api.PACKAGE)
PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")  # one file of a split model
LONGEST_ERROR = 400  # characters


def is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def gguf_bytes(path: Path) -> int:
    """Return the size of a model in bytes. path: its file, its first part, or a link to it."""
    path = path.resolve()
    if PART.search(path.name) is None:
        return path.stat().st_size
    name = PART.sub("", path.name)
    others = [other for other in path.parent.iterdir() if PART.search(other.name)]
    return sum(other.stat().st_size for other in others if PART.sub("", other.name) == name)


def convert_gguf(path: Path) -> Path:
    """Return the folder of a GGUF file in Tandem's cache; make it unless it is there.

    It has the tokenizer, the configuration and a link to the file. The file is read again if its
    size or modification time changes, or the version of a package that reads it. Raises
    TandemError.
    """
    if (part := PART.search(path.name)) and int(part[1]) != 1:
        raise TandemError(f"{path} is a part of a split model; name its first part, 00001")
    stamp = _stamp(path)
    place = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
    folder = cache_folder() / "gguf" / f"{path.stem}-{place}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = folder / STAMP
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (made.is_file() and made.read_text() == stamp):
                _convert(path, folder, stamp)
    except OSError as error:
        raise TandemError(
            f"can't write {error.filename or folder}: {error.strerror}; set XDG_CACHE_HOME to "
            "a writable folder with free space"
        ) from error
    return folder


def _stamp(path: Path) -> str:
    """Return text that identifies the file and the package versions.

    Raises TandemError if a package is missing.
    """
    try:
        versions = {name: metadata.version(name) for name in PACKAGES}
    except metadata.PackageNotFoundError as error:
        raise TandemError(
            f"can't read {path} without the package {error.name}; {install_extra('gguf')}"
        ) from error
    facts = path.stat()
    return json.dumps(
        {"format": FORMAT, "size": facts.st_size, "changed": facts.st_mtime_ns, **versions}
    )


def _convert(path: Path, folder: Path, stamp: str) -> None:
    """Read the file in a separate process, so that its memory is freed."""
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover)
    with atomic_folder(folder) as fresh:
        with status_line(f"reading the tokenizer of {path}; this is done once"):
            done = subprocess.run(
                [sys.executable, "-m", f"{__package__}.gguf_tokenizer", str(path), str(fresh)],
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            died = f"can't read {path}: exit status {done.returncode}"
            raise TandemError((done.stderr.strip().splitlines() or [died])[-1][:LONGEST_ERROR])
        (fresh / GGUF_FILE).symlink_to(path.resolve())
        (fresh / STAMP).write_text(stamp)
