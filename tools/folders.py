"""Folders that are written completely or not at all, and temporary files of running servers."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tandem.tools.errors import TandemError

PREFIX = "tandem-server-"  # of temporary folders and logs
TEMPORARY = re.compile(rf"{PREFIX}\w+(\.log)?")


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


class TemporaryFolder:
    """A new folder of this process, locked until it is removed or the process ends."""

    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY)
                _lock(self._lock)
                if self.path.exists():
                    return
                os.close(self._lock)  # another process has removed it before it was locked

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def create_log() -> tuple[int, Path]:
    """Return a new file, locked as long as a process has this descriptor, and its path."""
    while True:
        descriptor, path = tempfile.mkstemp(prefix=PREFIX, suffix=".log")
        _lock(descriptor)
        if Path(path).exists():
            return descriptor, Path(path)
        os.close(descriptor)  # another process has removed it before it was locked


def _lock(descriptor: int) -> None:
    """Lock a file, unless its file system has no locks. Then no process can remove it either."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def keep_log(path: Path) -> None:
    """Keep a log for the user when its server has ended."""
    with suppress(FileNotFoundError):
        path.chmod(stat.S_IRUSR)


def remove_leftovers() -> None:
    """Remove this user's temporary folders and logs of servers that were killed."""
    for path in Path(tempfile.gettempdir()).iterdir():
        if not TEMPORARY.fullmatch(path.name):
            continue
        try:
            # Another user's may be a named pipe, for whose writer this would wait.
            found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # another user's, or already removed
            continue
        try:
            facts = os.fstat(found)
            is_kept = not facts.st_mode & stat.S_IWUSR
            if facts.st_uid == os.getuid() and not is_kept:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        except OSError:
            continue  # its server is running, or the file system has no locks
        finally:
            os.close(found)


def copy_failure(error: OSError) -> tuple[str, str]:
    """Return the file that couldn't be written, or "", and why. error: raised by `shutil`."""
    if isinstance(error, shutil.Error):  # has all failures of copytree
        _, target, reason = error.args[0][0]
        return target, reason.partition("] ")[2].partition(": ")[0]
    return error.filename2 or error.filename or "", error.strerror or str(error)
