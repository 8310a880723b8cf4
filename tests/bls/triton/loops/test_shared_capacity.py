"""Loops run in separate processes, as in Triton, and share capacity even if some hang or die."""

import fcntl
import json
import os
import queue
import re
import signal
import struct
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import loop_process
import pytest
from live_triton import eventually

from tandem.bls.admission import OtherLoops
from tandem.bls.triton.loops.shared_capacity import (
    OPEN,
    PREFIX,
    ROW,
    ROWS,
    SHARED_MEMORY,
    find_other_loops,
    shared_name,
)

PATIENCE = 30
NOTHING = "usage 0 0 0 0 0 0"


class Loop:
    """A loop process and its output."""

    def __init__(self, name):
        self.process = subprocess.Popen(
            [sys.executable, loop_process.__file__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._said = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with self.process.stdout as lines:  # closed only here, because a closed file can't be read
            for line in lines:
                self._said.put(line.strip())

    def send(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self):
        return self._said.get(timeout=PATIENCE)

    def ask(self, line):
        self.send(line)
        return self.hear()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def name():
    """A unique file name."""
    made = f"tandem-test-{uuid.uuid4().hex}"
    yield made
    (SHARED_MEMORY / made).unlink(missing_ok=True)


@pytest.fixture
def begin(name):
    """Return a function that starts `count` loops of one entry."""
    started = []

    def start(count, *, until_ready=True):
        loops = [Loop(name) for _ in range(count)]
        started.extend(loops)
        for loop in loops if until_ready else ():
            assert loop.hear() == "ready"
        return loops

    yield start
    for loop in started:
        loop.process.send_signal(signal.SIGCONT)
        loop.kill()
        loop.process.stdin.close()


def test_each_loop_knows_the_usage_of_the_others(begin):
    first, second, third = begin(3)
    assert first.ask("publish 1 2 3 4 5 60") == "published"
    assert second.ask("publish 10 20 30 40 50 6") == "published"
    assert third.ask("usage") == "usage 11 22 33 44 55 6"
    assert second.ask("usage") == "usage 1 2 3 4 5 60"


def test_only_one_loop_admits_requests_at_a_time(begin):
    first, second = begin(2)
    assert first.ask("hold") == "held"
    second.send("usage")
    assert first.ask("7 0 0 0 0 0") == "released"
    assert second.hear() == "usage 7 0 0 0 0 0"


def test_capacity_of_a_dead_loop_is_freed(begin):
    first, second = begin(2)
    assert first.ask("publish 1 1 1 1 1 1") == "published"
    assert second.ask("usage") == "usage 1 1 1 1 1 1"
    first.kill()
    assert second.ask("usage") == NOTHING


def test_a_loop_that_dies_while_admitting_does_not_block_others(begin):
    first, second = begin(2)
    assert first.ask("hold") == "held"
    second.send("usage")
    first.kill()
    assert second.hear() == NOTHING


def test_a_new_loop_gets_the_slot_of_a_dead_one(begin):
    first, second = begin(2)
    assert first.ask("publish 1 1 1 1 1 1") == "published"
    first.kill()
    [third] = begin(1)
    assert third.ask("usage") == second.ask("usage") == NOTHING
    second.send("stop a")
    assert third.hear() == "stop a"


def test_usage_left_by_an_earlier_server_is_ignored(name, begin):
    (SHARED_MEMORY / name).write_bytes(struct.pack(f"{ROW}q", OPEN, *[9] * (ROW - 1)) * 20)
    first, second = begin(2)
    assert first.ask("usage") == second.ask("usage") == NOTHING


def test_a_stop_is_sent_to_every_other_loop(begin):
    first, second, third = begin(3)
    # The socket of a stalled process has room for ten messages.
    names = [f"tandem-forwarded-{number}" for number in range(10)]
    first.send(f"stop {' '.join(names)}")
    for other in (second, third):
        assert [other.hear() for _ in names] == [f"stop {name}" for name in names]
    assert first.ask("usage") == NOTHING  # this loop has received no stop


def test_other_loops_are_notified_of_changes(begin):
    first, second = begin(2)
    first.send("notify")
    assert second.hear() == "notified"


def test_a_hanging_loop_does_not_block_messages_to_others(begin):
    first, hanging, third = begin(3)
    hanging.process.send_signal(signal.SIGSTOP)
    for number in range(14):  # more messages than the system buffers
        first.send(f"stop {number}")
        assert third.hear() == f"stop {number}"


def test_the_last_message_before_closing_is_sent(begin):
    first, second = begin(2)
    first.send("stop a")
    assert first.ask("close") == "closed"
    assert second.hear() == "stop a"


def test_a_new_loop_finds_the_loops_that_are_still_running(name, begin):
    leaving, staying = begin(2)
    assert staying.ask("publish 1 2 3 4 5 6") == "published"
    assert leaving.ask("close") == "closed"
    [newcomer] = begin(1)
    assert newcomer.ask("usage") == "usage 1 2 3 4 5 6"
    newcomer.send("stop a")
    assert staying.hear() == "stop a"
    assert staying.ask("close") == newcomer.ask("close") == "closed"
    assert not (SHARED_MEMORY / name).exists()


def test_closing_the_last_loop_after_a_crash_removes_the_file(name, begin):
    first, second = begin(2)
    first.kill()
    assert second.ask("close") == "closed"
    assert not (SHARED_MEMORY / name).exists()


def test_the_shared_file_is_recreated_if_removed_while_being_opened(name, begin):
    [last] = begin(1)
    held = os.open(SHARED_MEMORY / name, os.O_RDWR)
    fcntl.lockf(held, fcntl.LOCK_EX, 1, ROWS)  # both wait for this lock, the new process second
    last.send("close")
    [newcomer] = begin(1, until_ready=False)
    assert eventually(lambda: number_waiting_for(held) == 2)
    os.close(held)
    assert last.hear() == "closed"
    assert newcomer.hear() == "ready"
    [third] = begin(1)
    third.send("stop a")
    assert newcomer.hear() == "stop a"


def number_waiting_for(file):
    """Return how many processes wait for a lock on a file.

    /proc/locks has `1: -> POSIX ADVISORY WRITE 7 00:1a:42 64 64` if process 7 waits for inode 42.
    """
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    inode = str(os.fstat(file).st_ino)
    return sum("->" in lock and inode == lock[-3].split(":")[-1] for lock in locks)


ARGS = {"model_name": "bls_stream", "model_version": "1", "model_instance_name": "bls_stream_0_1"}


def test_the_shared_file_name_has_the_prefix_of_the_server():
    region = f"{PREFIX}tandem-15296-cdce9644-"
    command = ["stub", "/models/bls_stream/1/model.py", f"{region}{uuid.uuid4()}", "1048576"]
    assert shared_name(ARGS, command, 42, 7) == f"{region}7-42-bls_stream-1"
    other = [*command[:2], f"{region}{uuid.uuid4()}"]
    assert shared_name(ARGS, other, 42, 7) == shared_name(ARGS, command, 42, 7)


def test_two_containers_do_not_share_a_file():
    """In each container, the process id is 1. With --ipc=host, containers share /dev/shm."""
    command = ["stub", "/models/bls_stream/1/model.py", f"{PREFIX}{uuid.uuid4()}"]
    assert shared_name(ARGS, command, 1, 7) != shared_name(ARGS, command, 1, 8)


def started_as(*counts):
    return ARGS | {"model_config": json.dumps({"instance_group": [{"count": n} for n in counts]})}


def test_a_single_loop_needs_no_shared_capacity():
    assert type(find_other_loops(started_as(1), 1)) is OtherLoops


@pytest.mark.parametrize(("counts", "settings"), [((2,), 1), ((1,), 2), ((1, 1), 1)])
def test_a_wrong_number_of_instances_is_rejected(counts, settings):
    with pytest.raises(ValueError, match=f"starts {sum(counts)} loops, .* is {settings}; set"):
        find_other_loops(started_as(*counts), settings)


def test_the_shared_file_is_named_after_the_process_namespace():
    loops = find_other_loops(started_as(2), 2)
    loops.open(on_stop=lambda request_id: None, on_release=lambda: None)
    namespace = re.fullmatch(r"pid:\[(\d+)\]", os.readlink("/proc/self/ns/pid"))[1]
    made = SHARED_MEMORY / f"{PREFIX}{namespace}-{os.getppid()}-bls_stream-1"
    assert made.exists()
    loops.close()
    assert not made.exists()
