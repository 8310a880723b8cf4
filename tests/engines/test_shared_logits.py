"""Any process can read logits in shared memory once, until they time out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from tandem.engines import shared_logits
from tandem.engines.errors import ResponseError
from tandem.engines.shared_logits import (
    MAX_PAGES,
    SECONDS_TO_READ,
    SharedLogitsWriter,
    read_shared_logits,
)

ELSEWHERE = """
import sys
import numpy as np
from tandem.engines.shared_logits import read_shared_logits
logits = read_shared_logits(np.array(sys.argv[1:], np.uint64), 99)
if logits is not None:
    print(logits.tolist())
"""

READS_ALL = """
import sys
import numpy as np
from tandem.engines.shared_logits import read_shared_logits
counts = {"right": 0, "gone": 0, "wrong": 0}
for line in sys.stdin:
    *handle, value = map(int, line.split())
    logits = read_shared_logits(np.array(handle, np.uint64), 99)
    right = logits is not None and logits.size and (logits == value).all()
    counts["gone" if logits is None else "right" if right else "wrong"] += 1
print(counts["right"] > 0, counts["gone"] > 0, counts["wrong"])
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rows(value: float, num: int = 2, width: int = 5) -> np.ndarray:
    return np.full((num, width), value, np.float32)


def read(handle: np.ndarray) -> list | None:
    logits = read_shared_logits(handle, 99)
    return None if logits is None else logits.tolist()


def read_elsewhere(handle: np.ndarray) -> str:
    """Return the logits that another process reads from a handle, as text."""
    command = [sys.executable, "-c", ELSEWHERE, *map(str, handle)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def writer(clock):
    writer = SharedLogitsWriter(clock)
    yield writer
    writer.close()


@pytest.fixture
def descriptors():
    """Return a function that returns the inode of each open descriptor of this test's pages."""

    def inodes():
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the listing's own descriptor
                path = f"/proc/self/fd/{descriptor}"
                if "tandem-logits" in os.readlink(path):
                    yield os.stat(path).st_ino

    before = set(inodes())
    return lambda: [inode for inode in inodes() if inode not in before]


@pytest.fixture
def num_pages(descriptors):
    """Return a function that counts the pages that this test has created and not closed."""
    return lambda: len(set(descriptors()))


def test_another_process_reads_the_logits_and_frees_their_page(writer, num_pages):
    logits = np.arange(10, dtype=np.float32).reshape(2, 5)
    first = writer.write(logits)
    logits[:] = 0  # the shared logits are a copy
    assert read_elsewhere(first) == str(np.arange(10.0).reshape(2, 5).tolist())
    second = writer.write(rows(7))
    assert num_pages() == 1
    assert read_elsewhere(first) == ""
    assert read_elsewhere(second) == str(rows(7).tolist())


def test_a_page_that_is_reused_while_it_is_being_read_counts_as_gone(writer, clock, monkeypatch):
    handle = writer.write(rows(1))
    preadv = os.preadv

    def slow(*args):
        clock.now = SECONDS_TO_READ + 1
        newer.append(writer.write(rows(2)))
        return preadv(*args)

    newer = []
    monkeypatch.setattr(os, "preadv", slow)
    assert read(handle) is None
    monkeypatch.undo()
    assert read(newer[0]) == rows(2).tolist()


@pytest.mark.heavy
def test_another_process_never_reads_logits_that_are_overwritten_meanwhile(writer, monkeypatch):
    monkeypatch.setattr(shared_logits, "MAX_PAGES", 2)
    command = [sys.executable, "-c", READS_ALL]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as reader:
        assert reader.stdin
        assert reader.stdout
        for value in range(2000):
            handle = writer.write(rows(value, 1 + value % 5, 50_000))
            reader.stdin.write(" ".join(map(str, [*handle, value])) + "\n")
        reader.stdin.close()
        assert reader.stdout.read() == "True True 0\n"


def test_an_unread_page_is_reused_after_its_timeout(writer, clock, num_pages):
    old = writer.write(rows(1))
    writer.write(rows(2))
    assert num_pages() == 2
    clock.now = SECONDS_TO_READ + 1
    writer.write(rows(3))
    assert num_pages() == 2
    assert read(old) is None


def test_a_free_page_cannot_be_read(writer):
    handle = writer.write(rows(1))
    read(handle)
    for number in (0, int(handle[2])):
        assert read(np.array([*handle[:2], number], np.uint64)) is None


def test_reading_leaks_no_descriptor(writer, descriptors):
    handle = writer.write(rows(1))
    before = descriptors()
    for number in range(50):
        assert read(np.array([*handle[:2], number], np.uint64)) is None
    assert read(handle) == rows(1).tolist()
    assert descriptors() == before


def test_the_number_of_unread_pages_is_limited(writer, num_pages):
    handles = [writer.write(rows(n)) for n in range(3 * MAX_PAGES)]
    assert num_pages() == MAX_PAGES
    assert all(read(handle) is None for handle in handles[:-MAX_PAGES])
    assert [read(handle) for handle in handles[-MAX_PAGES:]] == [
        rows(n).tolist() for n in range(2 * MAX_PAGES, 3 * MAX_PAGES)
    ]


def test_the_size_of_pages_is_limited(writer, monkeypatch, num_pages):
    monkeypatch.setattr(shared_logits, "MAX_BYTES", 4096 * 4)
    handles = [writer.write(rows(n, 1, 1024)) for n in range(4)]
    last = writer.write(rows(9, 2, 1024))  # as large as two pages: replaces the oldest ones
    assert num_pages() == 3
    assert [read(handle) for handle in handles[:2]] == [None, None]
    assert read(last) == rows(9, 2, 1024).tolist()
    assert read(handles[3]) == rows(3, 1, 1024).tolist()
    writer.write(rows(5, 4, 1024))  # as large as the limit
    assert num_pages() == 1
    with pytest.raises(
        ResponseError, match="its logits need 0 MiB of shared memory; the limit is 0 MiB"
    ):
        writer.write(rows(1, 5, 1024))


@pytest.mark.parametrize("wrong", [0, 1, 2], ids=["process", "descriptor", "number"])
def test_an_invalid_handle_is_rejected(writer, wrong):
    handle = writer.write(rows(1))
    handle[wrong] += 100_000
    assert read(handle) is None


def test_handles_of_other_files_are_rejected():
    number, num, width = 5, 1, 4
    with tempfile.TemporaryFile() as other:
        other.write(np.array([number, num, width], np.uint64).tobytes())
        other.write(bytes(4096))
        other.flush()
        assert read(np.array([os.getpid(), other.fileno(), number], np.uint64)) is None
    assert read(np.zeros(2, np.uint64)) is None


def test_pages_of_an_exited_writer_cannot_be_read():
    program = (
        "import numpy as np; from tandem.engines.shared_logits import SharedLogitsWriter;"
        "print(*SharedLogitsWriter().write(np.ones((1, 4), np.float32)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert read(np.array(ended.stdout.split(), np.uint64)) is None


def test_concurrent_drafts_get_their_own_logits(writer, num_pages):
    def pass_on(n):
        return read(writer.write(rows(n, 1 + n % 7, 1000)))[-1][-1]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(pass_on, range(400))) == list(range(400))
    assert num_pages() <= 8
