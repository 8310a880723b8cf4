"""Logits that the draft engine passes to the target in shared memory.

Triton's Python backend copies a tensor six times on its way from the draft through the loop to the
target. Ten rows of a vocabulary of 128,256 are 5 MB per copy. A handle of 24 bytes locates the
logits instead. TensorRT-LLM's fast logits do the same between its own processes.

A page is anonymous memory (memfd_create(2)), so it disappears with the draft's process. The writer
reuses a page after its reader gives it back, or if it isn't read in time. A reader needs the number
in the handle, which cannot be guessed.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandem.engines.errors import ResponseError
from tandem.engines.request import Floats

Handle: TypeAlias = NDArray[np.uint64]  # [3]: process id, the page's file descriptor there, number

SECONDS_TO_TAKE = 60.0  # the caller that requested the logits has timed out long before
MOST_PAGES = 128  # above this, the oldest unread page is reused early
MOST_BYTES = 2**30  # all pages; enough for long drafts of 64 requests with a large vocabulary

log = logging.getLogger(__name__)

_NAME = "tandem-logits"
_HANDLE_WORDS = 3
_HEADER_BYTES = 64
# Indices of the words in a header. Number 0: the page must not be read.
_NUMBER, _TAKEN, _RETURNED, _ROWS, _WIDTH, _READER, _CLOSED = range(7)


class _Page:
    """Memory shared by two processes: a header that says who uses it, then the logits."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self.capacity = len(self._memory) - _HEADER_BYTES  # bytes for logits
        self._header = np.frombuffer(self._memory, np.uint64, _HEADER_BYTES // 8)

    def logits(self) -> Floats:
        rows, width = int(self._header[_ROWS]), int(self._header[_WIDTH])
        values = np.frombuffer(self._memory, np.float32, rows * width, _HEADER_BYTES)
        return values.reshape(rows, width)

    def write(self, logits: Floats) -> int:
        self._header[_ROWS], self._header[_WIDTH] = logits.shape
        np.copyto(self.logits(), logits)
        number = secrets.randbits(63) + 1
        self._header[_NUMBER] = number
        return number

    @property
    def returned(self) -> bool:
        return bool(self._header[_RETURNED] == self._header[_NUMBER])

    def try_free(self) -> bool:
        """Withdraw the page if it is unread. Return True if no process reads it, now or later."""
        reader = int(self._header[_READER])
        return self.returned or self.withdraw() or not os.path.exists(f"/proc/{reader}")

    @property
    def closed(self) -> bool:
        return bool(self._header[_CLOSED])

    def close(self) -> None:
        self._header[_CLOSED] = 1  # readers unmap it; a current reader may finish

    def withdraw(self) -> bool:
        """Take back an unread page. Return False if it has been read."""
        number = int(self._header[_NUMBER])
        self._header[_NUMBER] = 0
        if self._header[_TAKEN] == number:
            self._header[_NUMBER] = number
            return False
        return True

    def discard(self, number: int) -> None:
        """Free the page if it holds unread logits with this number."""
        if self._header[_NUMBER] == number and self.withdraw():
            self._header[_RETURNED] = 0  # the number of a withdrawn page, which makes it `returned`

    def take(self, number: int) -> bool:
        """Start reading the logits with this number. Return False if they are gone or taken."""
        if not number or self._header[_NUMBER] != number or self._header[_TAKEN] == number:
            return False
        self._header[_READER] = os.getpid()
        self._header[_TAKEN] = number
        if self._header[_NUMBER] == number:
            return True
        self.give_back(number)  # the writer withdrew it at the same time
        return False

    def give_back(self, number: int) -> None:
        self._header[_RETURNED] = number


class SharedLogitsWriter:
    """Writes a draft's logits for the target. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written: deque[tuple[float, int, _Page]] = deque()  # oldest first
        self._lock = threading.Lock()

    def write(self, logits: Floats) -> Handle:
        """Copy logits [n, vocab_size] to shared memory. Return the handle for the reader.

        Raises ResponseError if memory is exhausted.
        """
        with self._lock:
            descriptor, page = self._free_page(logits.nbytes)
        number = page.write(logits)
        with self._lock:
            self._written.append((self._clock(), descriptor, page))
        return np.array([os.getpid(), descriptor, number], np.uint64)

    def take_back(self, handle: Handle) -> None:
        """Reuse the memory of logits that won't be read. Ignore other writers' handles."""
        if handle.size != _HANDLE_WORDS:
            return
        process, descriptor, number = handle.reshape(-1).tolist()
        with self._lock:
            for _, known, page in self._written if process == os.getpid() else ():
                if known == descriptor:
                    page.discard(number)

    def close(self) -> None:
        """Free all pages. A reader keeps the page that it is reading."""
        with self._lock:
            while self._written:
                _close(*self._written.popleft()[1:])

    def _free_page(self, num_bytes: int) -> tuple[int, _Page]:
        place = self._place_of_free_page()
        if place is not None:
            _, descriptor, page = self._written[place]
            del self._written[place]
            if page.capacity >= num_bytes:
                return descriptor, page
            _close(descriptor, page)
        # Unwritten parts of a page use no memory, so spare capacity for longer drafts is free.
        capacity = 1 << (num_bytes - 1).bit_length()
        self._make_room(capacity)
        descriptor = os.memfd_create(_NAME)
        os.ftruncate(descriptor, _HEADER_BYTES + capacity)
        return descriptor, _Page(descriptor)

    def _make_room(self, num_bytes: int) -> None:
        """Free pages without a reader, oldest first, until `num_bytes` more fit the limit."""
        excess = num_bytes + sum(page.capacity for _, _, page in self._written) - MOST_BYTES
        for place in list(self._written) if num_bytes <= MOST_BYTES else ():
            _, descriptor, page = place
            if excess > 0 and page.try_free():
                self._written.remove(place)
                _close(descriptor, page)
                excess -= page.capacity
        if excess > 0:
            raise ResponseError(
                f"its logits need {num_bytes / 2**20:.0f} MiB of shared memory; the limit is "
                f"{MOST_BYTES / 2**20:.0f} MiB for all drafts; request fewer tokens"
            )

    def _place_of_free_page(self) -> int | None:
        for place, (_, _, page) in enumerate(self._written):
            if page.returned:
                return place
        patience = 0.0 if len(self._written) >= MOST_PAGES else SECONDS_TO_TAKE
        for place, (since, _, page) in enumerate(self._written):
            if self._clock() - since < patience:
                return None
            if page.try_free():
                return place
        return None


def _close(descriptor: int, page: _Page) -> None:
    page.close()
    os.close(descriptor)


class SharedLogits(NamedTuple):
    """Logits [rows, vocab_size] in shared memory. The reader must give them back."""

    logits: Floats
    give_back: Callable[[], None]


class SharedLogitsReader:
    """Reads a draft's logits for the target. Thread-safe."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int], _Page] = {}
        self._lock = threading.Lock()
        self._warned = False

    def read(self, handle: Handle) -> SharedLogits | None:
        """Return the logits, or None if they are gone or never existed."""
        if handle.size == _HANDLE_WORDS:
            process, descriptor, number = handle.reshape(-1).tolist()
            with self._lock:
                page = self._taken(process, descriptor, number)
            if page is not None:
                return SharedLogits(page.logits(), partial(page.give_back, number))
        if not self._warned:
            self._warned = True
            log.warning("failed to read a draft's logits; such drafts are verified by ids")
        return None

    def _taken(self, process: int, descriptor: int, number: int) -> _Page | None:
        page = self._pages.get((process, descriptor))
        if page is not None and page.take(number):
            return page
        # The page is new to this reader, or its descriptor now belongs to another page. A wrong
        # number in the handle has no effect.
        page = self._open(process, descriptor)
        if page is None or not page.take(number):
            return None
        # Unmap pages that their writers have closed, and pages of processes that have ended.
        self._pages = {
            place: page
            for place, page in self._pages.items()
            if not page.closed and os.path.exists(f"/proc/{place[0]}")
        }
        self._pages[process, descriptor] = page
        return page

    def _open(self, process: int, descriptor: int) -> _Page | None:
        path = f"/proc/{process}/fd/{descriptor}"
        try:
            if os.readlink(path) != f"/memfd:{_NAME} (deleted)":
                return None
            opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return _Page(opened)
        except (OSError, ValueError):  # out of memory, or the page is still being created
            return None
        finally:
            os.close(opened)
