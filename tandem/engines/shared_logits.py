"""Logits that the draft engine passes to the target in shared memory.

Triton's Python backend copies a tensor six times on its way from the draft through the loop to the
target. Ten rows of a vocabulary of 128,256 are 5 MB per copy. A handle of 24 bytes locates the
logits instead. TensorRT-LLM's fast logits do the same between its own processes.

A page is an anonymous file in memory (memfd_create(2)), so it disappears with the draft's process.
It begins with a header: the number of its logits, and their shape. The number can't be guessed. The
reader copies the logits, then sets the number to 0, which frees the page. The writer also reuses a
page that isn't read in time. If a reader doesn't find the expected number before and after copying,
the logits count as gone.
"""

from __future__ import annotations

import functools
import logging
import mmap
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.engines.engine import Floats
from tandem.engines.errors import ResponseError

Handle: TypeAlias = NDArray[np.uint64]  # [3]: process id, the page's file descriptor there, number

SECONDS_TO_READ = 60.0  # by then, the call that needs the logits has timed out
MAX_PAGES = 128  # above this, the oldest page is reused early
MAX_BYTES = 2**30  # all pages; enough for long drafts of 64 requests with a large vocabulary

log = logging.getLogger(__name__)

_NAME = "tandem-logits"
_HANDLE_WORDS = 3
_HEADER_WORDS = 3  # number (0: the page is free), rows, width
_HEADER_BYTES = 8 * _HEADER_WORDS


class _Page:
    """A page of the writer. number, written_at: of the newest logits."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create(_NAME)
        os.ftruncate(self.descriptor, _HEADER_BYTES)
        self._memory = mmap.mmap(self.descriptor, 0)
        self.number = 0
        self.written_at = 0.0

    @property
    def capacity(self) -> int:
        """Maximum size of logits in bytes."""
        return len(self._memory) - _HEADER_BYTES

    def enlarge(self, capacity: int) -> None:
        if capacity > self.capacity:
            self._memory.resize(_HEADER_BYTES + capacity)

    def write(self, logits: Floats, now: float) -> None:
        self.number, self.written_at = secrets.randbits(63) + 1, now
        _free(self.descriptor)
        target = np.frombuffer(self._memory, np.float32, logits.size, _HEADER_BYTES)
        np.copyto(target.reshape(logits.shape), logits)
        header = np.array([self.number, *logits.shape], np.uint64)
        os.pwrite(self.descriptor, header.tobytes(), 0)

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)


class SharedLogitsWriter:
    """Writes a draft's logits for the target. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pages: deque[_Page] = deque()  # oldest logits first
        self._lock = threading.Lock()

    def write(self, logits: Floats) -> Handle:
        """Copy logits [n, vocab_size] to shared memory. Return the handle for the reader.

        Raises ResponseError if the logits exceed `MAX_BYTES`.
        """
        if logits.nbytes > MAX_BYTES:
            raise ResponseError(
                f"its logits need {logits.nbytes / 2**20:.0f} MiB of shared memory; the limit is "
                f"{MAX_BYTES / 2**20:.0f} MiB for all drafts; request fewer tokens"
            )
        with self._lock:
            page = self._free_page() or _Page()
            page.enlarge(logits.nbytes)
            total = page.capacity + sum(other.capacity for other in self._pages)
            while total > MAX_BYTES and self._pages:
                oldest = self._pages.popleft()
                total -= oldest.capacity
                oldest.close()
        page.write(logits, self._clock())
        with self._lock:
            self._pages.append(page)
        return np.array([os.getpid(), page.descriptor, page.number], np.uint64)

    def close(self) -> None:
        with self._lock:
            while self._pages:
                self._pages.popleft().close()

    def _free_page(self) -> _Page | None:
        """Remove and return a page that was read or is too old to be read, if there is one."""
        expired = self._clock() - SECONDS_TO_READ
        for page in self._pages:
            if page.written_at < expired or not _read_header(page.descriptor)[0]:
                self._pages.remove(page)
                return page
        return self._pages.popleft() if len(self._pages) >= MAX_PAGES else None


def read_shared_logits(handle: Handle, count: int) -> Floats | None:
    """Return up to `count` rows; None if the logits are gone or never existed.

    The page is then free, so a handle can be read only once.
    """
    logits = _read(handle, count) if handle.size == _HANDLE_WORDS else None
    if logits is None:
        _warn_once()
    return logits


@functools.cache
def _warn_once() -> None:
    log.warning("failed to read a draft's logits; such drafts are verified by ids")


def _read(handle: Handle, count: int) -> Floats | None:
    process, descriptor, number = handle.reshape(-1).tolist()
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        if os.readlink(path) != f"/memfd:{_NAME} (deleted)":
            return None
        page = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found, rows, width = _read_header(page)
        if not number or found != number:
            return None
        logits = np.empty((min(count, rows), width), np.float32)
        os.preadv(page, [logits.data], _HEADER_BYTES)
        if _read_header(page)[0] != number:  # reused meanwhile
            return None
        _free(page)
        return logits
    finally:
        os.close(page)


def _read_header(page: int) -> tuple[int, int, int]:
    """Return number, rows and width; zeros if the page is still being created."""
    words = os.pread(page, _HEADER_BYTES, 0).ljust(_HEADER_BYTES, b"\0")
    number, rows, width = np.frombuffer(words, np.uint64).tolist()
    return number, rows, width


def _free(page: int) -> None:
    os.pwrite(page, bytes(8), 0)
