"""Folders that are written completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.tools.errors import TandemError


def cache_folder() -> Path:
    """Return the folder of Tandem's cache. Raises TandemError."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem"
    except RuntimeError as error:
        raise TandemError("there is no home folder; set XDG_CACHE_HOME to a folder") from error


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield an empty temporary folder, which is renamed to ``folder`` once it is complete.

    replace: replace an earlier folder; False: keep it. Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        fresh = Path(temporary, "fresh")
        fresh.mkdir()
        yield fresh
        if replace and folder.exists():
            folder.rename(Path(temporary, "old"))
        try:
            fresh.rename(folder)
        except OSError:
            if replace or not folder.is_dir():  # another process may have written it meanwhile
                raise


def copy_failure(error: OSError) -> tuple[str, str]:
    """Return the file that couldn't be written, or "", and why. error: raised by `shutil`."""
    if isinstance(error, shutil.Error):  # has all failures of copytree
        _, target, reason = error.args[0][0]
        return target, reason.partition("] ")[2].partition(": ")[0]
    return error.filename2 or error.filename or "", error.strerror or str(error)
