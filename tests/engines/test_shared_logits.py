"""Any process can read logits in shared memory once, until they time out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.engines.errors import ResponseError
from tandem.engines.shared_logits import (
    MOST_PAGES,
    SECONDS_TO_TAKE,
    SharedLogitsReader,
    SharedLogitsWriter,
)

ELSEWHERE = """
import sys
import numpy as np
from tandem.engines.shared_logits import SharedLogitsReader
shared = SharedLogitsReader().read(np.array(sys.argv[1:], np.uint64))
if shared is not None:
    print(shared.logits.tolist())
    shared.give_back()
"""


KILLED = """
import os, signal, sys
import numpy as np
from tandem.engines.shared_logits import SharedLogitsReader
shared = SharedLogitsReader().read(np.array(sys.argv[1:], np.uint64))
assert shared is not None
os.kill(os.getpid(), signal.SIGKILL)
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def rows(value: float, num: int = 2, width: int = 5) -> np.ndarray:
    return np.full((num, width), value, np.float32)


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


def test_another_process_reads_the_logits_and_frees_their_page(writer):
    logits = np.arange(10, dtype=np.float32).reshape(2, 5)
    first = writer.write(logits)
    logits[:] = 0  # the shared logits are a copy
    assert read_elsewhere(first) == str(np.arange(10.0).reshape(2, 5).tolist())
    second = writer.write(rows(7))
    assert first[:2].tolist() == second[:2].tolist()  # the same page
    assert len(writer._written) == 1
    assert read_elsewhere(first) == ""
    assert read_elsewhere(second) == str(rows(7).tolist())


def test_a_handle_can_be_read_only_once(writer):
    reader = SharedLogitsReader()
    handle = writer.write(rows(1))
    shared = reader.read(handle)
    assert reader.read(handle) is None
    shared.give_back()
    assert reader.read(handle) is None


def test_a_page_is_not_reused_while_it_is_being_read(writer, clock):
    reader = SharedLogitsReader()
    shared = reader.read(writer.write(rows(1)))
    clock.now = 100 * SECONDS_TO_TAKE
    for _ in range(2 * MOST_PAGES):
        writer.write(rows(2))
    assert shared.logits.tolist() == rows(1).tolist()


def test_an_unread_page_is_reused_after_its_timeout(writer, clock):
    old = writer.write(rows(1))
    writer.write(rows(2))
    assert len(writer._written) == 2
    clock.now = SECONDS_TO_TAKE + 1
    writer.write(rows(3))
    assert len(writer._written) == 2
    assert SharedLogitsReader().read(old) is None


def test_a_page_taken_back_is_reused_immediately(writer):
    reader = SharedLogitsReader()
    old = writer.write(rows(1))
    other = writer.write(rows(2))
    writer.take_back(old)
    assert reader.read(old) is None
    new = writer.write(rows(3))
    assert len(writer._written) == 2
    assert new[1] == old[1]
    writer.take_back(old)  # no effect, because the page has been reused
    assert reader.read(new).logits.tolist() == rows(3).tolist()
    assert reader.read(other).logits.tolist() == rows(2).tolist()


def test_only_valid_handles_of_unread_pages_can_be_taken_back(writer):
    reader = SharedLogitsReader()
    handle = writer.write(rows(1))
    shared = reader.read(handle)
    for odd in (handle, handle + np.array([1, 0, 0], np.uint64), handle[:2], handle * 0):
        writer.take_back(odd)
    writer.write(rows(2))
    assert len(writer._written) == 2
    assert shared.logits.tolist() == rows(1).tolist()


def test_a_free_page_cannot_be_opened(writer):
    reader = SharedLogitsReader()
    handle = writer.write(rows(1))
    reader.read(handle).give_back()
    again = writer.write(rows(2))
    writer.take_back(again)  # so the page is free
    for number in (0, *map(int, (handle[2], again[2]))):
        assert reader.read(np.array([*handle[:2], number], np.uint64)) is None


def test_reading_with_an_invalid_number_leaks_no_descriptor(writer):
    reader = SharedLogitsReader()
    handle = writer.write(rows(1))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        assert reader.read(np.array([*handle[:2], number], np.uint64)) is None
    assert len(os.listdir("/proc/self/fd")) == before
    assert reader.read(handle).logits.tolist() == rows(1).tolist()


def test_a_page_is_reused_after_its_reader_was_killed(writer, clock):
    handle = writer.write(rows(1))
    command = [sys.executable, "-c", KILLED, *map(str, handle)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -9
    writer.write(rows(2))
    assert len(writer._written) == 2
    clock.now = SECONDS_TO_TAKE + 1
    assert writer.write(rows(3))[1] == handle[1]
    assert len(writer._written) == 2


def test_the_number_of_unread_pages_is_limited(writer):
    handles = [writer.write(rows(n)) for n in range(3 * MOST_PAGES)]
    assert len(writer._written) == MOST_PAGES
    reader = SharedLogitsReader()
    kept = handles[-MOST_PAGES:]
    assert all(reader.read(handle) is None for handle in handles[:-MOST_PAGES])
    assert [reader.read(handle).logits[0, 0] for handle in kept] == [
        *range(2 * MOST_PAGES, 3 * MOST_PAGES)
    ]


def test_one_page_is_reused_for_drafts_of_any_length(writer):
    reader = SharedLogitsReader()
    for num in (1, 40, 3):
        shared = reader.read(writer.write(rows(num, num, 1000)))
        assert shared.logits.shape == (num, 1000)
        assert (shared.logits == num).all()
        shared.give_back()
    assert len(writer._written) == 1


def test_the_size_of_pages_is_limited(writer, monkeypatch):
    monkeypatch.setattr("tandem.engines.shared_logits.MOST_BYTES", 4096 * 4)
    reader = SharedLogitsReader()
    handles = [writer.write(rows(n, 1, 1024)) for n in range(4)]
    assert len(writer._written) == 4
    kept = reader.read(handles[1])
    last = writer.write(rows(9, 2, 1024))  # as large as two pages: replaces the oldest unread ones
    assert len(writer._written) == 3
    assert [reader.read(handle) for handle in (handles[0], handles[2])] == [None, None]
    assert (kept.logits == 1).all()
    assert (reader.read(last).logits == 9).all()
    assert (reader.read(handles[3]).logits == 3).all()
    with pytest.raises(
        ResponseError, match="its logits need 0 MiB of shared memory; the limit is 0 MiB"
    ):
        writer.write(rows(1, 1, 1024))


@pytest.mark.parametrize("wrong", [0, 1, 2], ids=["process", "descriptor", "number"])
def test_an_invalid_handle_is_rejected(writer, wrong):
    handle = writer.write(rows(1))
    handle[wrong] += 100_000
    assert SharedLogitsReader().read(handle) is None


def test_handles_of_other_files_are_rejected():
    number, taken, returned, num, width = 5, 0, 0, 1, 4
    with tempfile.TemporaryFile() as other:
        other.write(np.array([number, taken, returned, num, width], np.uint64).tobytes())
        other.write(bytes(4096))
        other.flush()
        assert (
            SharedLogitsReader().read(np.array([os.getpid(), other.fileno(), number], np.uint64))
            is None
        )
    assert SharedLogitsReader().read(np.zeros(2, np.uint64)) is None


def test_pages_of_an_exited_writer_cannot_be_read():
    program = (
        "import numpy as np; from tandem.engines.shared_logits import SharedLogitsWriter;"
        "print(*SharedLogitsWriter().write(np.ones((1, 4), np.float32)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert SharedLogitsReader().read(np.array(ended.stdout.split(), np.uint64)) is None


def test_logits_that_cannot_be_read_are_logged_once(caplog):
    reader = SharedLogitsReader()
    for _ in range(3):
        assert reader.read(np.ones(3, np.uint64)) is None
    assert [record.message for record in caplog.records] == [
        "failed to read a draft's logits; such drafts are verified by ids"
    ]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["write", "take", "return"]), st.integers(0, 7))))
def test_each_handle_returns_its_own_logits_in_any_order(steps):
    writer, reader = SharedLogitsWriter(), SharedLogitsReader()
    written, taken = [], []
    for number, (step, which) in enumerate(steps):
        if step == "write":
            written.append((number, writer.write(rows(number, which + 1))))
        elif step == "take" and written:
            mine, handle = written.pop(which % len(written))
            taken.append((mine, reader.read(handle)))
        elif step == "return" and taken:
            taken.pop(which % len(taken))[1].give_back()
        assert all((shared.logits == mine).all() for mine, shared in taken)
    writer.close()
