"""Shares capacity between the loops of one entry, each of which is a process.

The loops share a file with one row per loop. A loop locks its row. When its process ends, even by a
crash, the system releases the lock. So the capacity of a dead loop becomes free, and rows of an
earlier server are ignored.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.bls.admission import LoopUsage, OtherLoops
from tandem.bls.triton.loops.mailbox import AddressTaken, Mailbox

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "triton_python_backend_shm_region_"  # Triton denies clients access to such names
REGION = re.compile(rf"({PREFIX}.*?)(?:[0-9a-f]+-){{4}}[0-9a-f]+")  # a server's prefix, a UUID
PID_NAMESPACE = Path("/proc/self/ns/pid")
ROWS = 64  # while Triton reloads a model, the loops of the old version still need rows
WORD = struct.calcsize("q")
STATE, USAGE = 0, 1  # offsets in a row, in words: state of the loop, LoopUsage
ROW = USAGE + len(LoopUsage._fields)  # words
OPEN, CLOSED = 1, 2  # states of a row; 0: free
RELEASED = "released"  # message: capacity was released. Others: id of a request to stop


class SharedCapacity(OtherLoops):
    """The other loops of an entry, found through a shared file.

    name: name of that file, the same for all loops of the entry.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._path = SHARED_MEMORY / name
        self._threads = threading.Lock()
        self._file = _open_locked(self._path)
        try:
            os.ftruncate(self._file, ROWS * ROW * WORD)
            # Words are written atomically. `struct` would clear them first, which others could see.
            self._words = memoryview(mmap.mmap(self._file, ROWS * ROW * WORD)).cast("q")
            self._row, self._mailbox = self._take_row()
            self._set_state(OPEN)
            self.publish(LoopUsage())
        finally:
            _unlock(self._file, ROWS)

    def open(self, *, on_stop: Callable[[str], object], on_release: Callable[[], None]) -> None:
        def receive(lines: list[str]) -> None:
            for line in lines:
                if line == RELEASED:
                    on_release()
                else:
                    on_stop(line)

        self._mailbox.open(receive, self._addresses)

    @contextmanager
    def exclusive_lock(self) -> Iterator[None]:
        """Lock out the other loops, and free the capacity of dead loops."""
        with self._threads:  # a file lock doesn't exclude threads of the same process
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, ROWS)
            try:
                self._clear_dead_rows()
                yield
            finally:
                _unlock(self._file, ROWS)

    def usage(self) -> LoopUsage:
        return LoopUsage.total(usage for _, _, usage in self._others())

    def publish(self, usage: LoopUsage) -> None:
        for field, number in enumerate(usage, self._row * ROW + USAGE):
            self._words[field] = number

    def notify(self) -> None:
        self._mailbox.put(RELEASED)

    def stop(self, request_id: str) -> None:
        self._mailbox.put(request_id)

    def close(self) -> None:
        """Stop receiving messages. The last loop removes the file.

        The file stays until then, so that new loops, such as loops of a reloaded model, find it.
        """
        self._mailbox.close()
        with self.exclusive_lock():
            self._set_state(CLOSED)
            if not any(state == OPEN for _, state, _ in self._others()):
                self._path.unlink(missing_ok=True)

    def _take_row(self) -> tuple[int, Mailbox]:
        """Lock a free row, and open its mailbox.

        Skips a row whose address is taken, because a child of a dead loop may still hold it.
        """
        for row in range(ROWS):
            if self._lock(row):
                try:
                    return row, Mailbox(self._address(row))
                except AddressTaken:
                    _unlock(self._file, row)
        raise RuntimeError(f"{ROWS} processes already serve this model, which is the limit")

    def _set_state(self, state: int) -> None:
        self._words[self._row * ROW + STATE] = state

    def _others(self) -> Iterator[tuple[int, int, LoopUsage]]:
        """Yield the number, state and usage of each row in use, except this loop's row."""
        for row in range(ROWS):
            at = row * ROW
            if (state := self._words[at + STATE]) and row != self._row:
                yield row, state, LoopUsage(*self._words[at + USAGE : at + ROW])

    def _clear_dead_rows(self) -> None:
        for row, *_ in self._others():
            if self._lock(row):
                for word in range(row * ROW, (row + 1) * ROW):
                    self._words[word] = 0
                _unlock(self._file, row)

    def _lock(self, row: int) -> bool:
        """Lock a row if no other process has locked it. Return whether it is locked now."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
        except BlockingIOError:
            return False
        return True

    def _addresses(self) -> list[bytes]:
        return [self._address(row) for row, *_ in self._others()]

    def _address(self, row: int) -> bytes:
        digest = hashlib.sha256(self._name.encode()).hexdigest()[:32]
        return f"\0tandem-{digest}-{row}".encode()


def _open_locked(path: Path) -> int:
    """Open the file and lock out other loops. Retries if the file was removed meanwhile."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, ROWS)
        if os.fstat(file).st_nlink:
            return file
        os.close(file)


def _unlock(file: int, row: int) -> None:
    """Unlock a row. Row ROWS stands for the lock of the whole file."""
    fcntl.lockf(file, fcntl.LOCK_UN, 1, row)


def find_other_loops(args: dict[str, str], instances: int) -> OtherLoops:
    """Return the other loops of the entry that Triton starts with these arguments.

    args: arguments of the model from Triton. instances: number of loops in the settings. Raises
    ValueError if Triton starts a different number of loops, because loops that don't share their
    capacity would each use all of ``max_requests``.
    """
    groups = json.loads(args["model_config"])["instance_group"]
    started = sum(group["count"] for group in groups)
    if started != instances:
        raise ValueError(
            f"config.pbtxt of '{args['model_name']}': instance_group starts {started} loops, but "
            f"parameter 'instances' is {instances}; set instances to {started} in the profile and "
            "re-render the repository"
        )
    if instances == 1:
        return OtherLoops()
    command = Path("/proc/self/cmdline").read_text(errors="replace").split("\0")
    namespace = PID_NAMESPACE.stat().st_ino
    return SharedCapacity(shared_name(args, command, os.getppid(), namespace))


def shared_name(args: dict[str, str], command: list[str], server: int, namespace: int) -> str:
    """Return a name that all loops of an entry share, and no other loops on this machine.

    args: arguments of the model from Triton. command: command line of this process. server: process
    id of the server. namespace: PID namespace of that id. Servers in two containers may both have
    id 1, and with ``--ipc=host`` they share /dev/shm.

    The name has the same prefix as the server's shared-memory regions, so a cleanup of these
    regions also removes this file.
    """
    regions = [found[1] for argument in command if (found := REGION.fullmatch(argument))]
    prefix = regions[0] if regions else PREFIX
    return f"{prefix}{namespace}-{server}-{args['model_name']}-{args['model_version']}"


def index_of_loop(args: dict[str, str]) -> str:
    """Return the number of this loop. Triton numbers instances from 0."""
    return args["model_instance_name"].rpartition("_")[2]
