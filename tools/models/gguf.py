"""GGUF files, each converted once: into tokenizer and configuration if llama.cpp is installed.

Without llama.cpp, the weights are dequantized too, into a checkpoint for the torch engine.
"""

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
from importlib.util import find_spec
from pathlib import Path

from tandem.engines.llamacpp.settings import GGUF_FILE
from tandem.tools.errors import TandemError, install_extra
from tandem.tools.folders import atomic_folder, cache_folder
from tandem.tools.models.weights import gigabytes
from tandem.tools.triton.serving import status_line

MAGIC = b"GGUF"
STAMP = "source.json"
PACKAGES = ("transformers", "gguf", "accelerate")
PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")  # one file of a split model
LONGEST_REASON = 300  # characters of an error


def is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def convert_gguf(path: Path) -> Path:
    """Return the folder of a GGUF file in Tandem's cache; make it unless it is there.

    If llama.cpp is installed, the folder has the tokenizer, the configuration and a link to the
    file. Otherwise it is a checkpoint of dequantized weights.

    The file is converted again if its size or modification time changes, or the version of a
    package that reads it. Raises TandemError.
    """
    if PART.search(path.name):
        raise TandemError(
            f"{path} is one part of a split model; merge the parts first: "
            "llama-gguf-split --merge FIRST-PART OUTPUT"
        )
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


def has_llamacpp() -> bool:
    return find_spec("llama_cpp") is not None


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
    if has_llamacpp():
        versions["llama-cpp-python"] = metadata.version("llama-cpp-python")
    facts = path.stat()
    return json.dumps({"size": facts.st_size, "changed": facts.st_mtime_ns, **versions})


def _convert(path: Path, folder: Path, stamp: str) -> None:
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover)
    with atomic_folder(folder) as fresh:
        _run_conversion(path, fresh)
        (fresh / STAMP).write_text(stamp)


def _run_conversion(path: Path, folder: Path) -> None:
    """Run the conversion in a separate process, so that its memory is freed."""
    keep = has_llamacpp()
    size = gigabytes(path.stat().st_size)
    if not keep:
        print(
            f"llama.cpp isn't installed, so PyTorch serves {path}, more slowly; "
            f"{install_extra('llamacpp')}",
            file=sys.stderr,
        )
    task = f"reading the tokenizer of {path}" if keep else f"dequantizing {path} ({size})"
    module = f"{__package__}.{'gguf_tokenizer' if keep else 'dequantize'}"
    with status_line(f"{task}; this is done once"):
        done = subprocess.run(
            [sys.executable, "-m", module, str(path), str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        verb = "read" if keep else "dequantize"
        raise TandemError(f"can't {verb} {path}: {said[:LONGEST_REASON]}")
    if keep:
        (folder / GGUF_FILE).symlink_to(path.resolve())
