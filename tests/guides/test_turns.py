"""One trial computes at a time: the shortest, but those that waited long have their turns too."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tandem.guides import turns
from tandem.guides.errors import GuideError
from tandem.guides.trial import TURNS, try_out
from tandem.guides.turns import Turns

SECONDS = 30
SHORT, LONG = 1.0, 100.0
STOPPED, GONE = "T", "Z"  # in /proc


def state_of(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return GONE
    return stat.rpartition(")")[2].split()[0]


def wait_until(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


class Trial:
    """Work that waits until it may end, in a copy of this process."""

    def __init__(self, cpu_seconds):
        begun, self._begun = os.pipe()
        self._may_end, self.let = os.pipe()
        self.outcome = None
        self._thread = threading.Thread(target=self._try, args=(cpu_seconds,))
        self._thread.start()
        self.pid = int(os.read(begun, 20))

    def _try(self, cpu_seconds):
        with suppress(GuideError):
            self.outcome = try_out(self._work, cpu_seconds)

    def _work(self):
        os.write(self._begun, str(os.getpid()).encode())
        return os.read(self._may_end, 20).decode()

    def end(self):
        os.write(self.let, b"let")
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    @property
    def stopped(self):
        return state_of(self.pid) == STOPPED


@contextmanager
def trials(*cpu_seconds):
    begun = [Trial(seconds) for seconds in cpu_seconds]
    try:
        yield begun
    finally:
        for trial in begun:
            trial.end()


def test_a_trial_stands_still_while_a_shorter_one_goes():
    with trials(LONG, SHORT) as (long, short):
        wait_until(lambda: long.stopped)
        assert not short.stopped
        short.end()
        wait_until(lambda: not long.stopped)
    assert (short.outcome, long.outcome) == ("let", "let")


def test_a_trial_that_waited_long_has_a_turn_before_shorter_ones(monkeypatch):
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.05)
    with trials(LONG, SHORT) as (long, short):
        for _ in range(3):
            wait_until(lambda: long.stopped and not short.stopped)
            wait_until(lambda: short.stopped and not long.stopped)


def test_a_trial_that_is_killed_makes_way():
    with trials(LONG, SHORT) as (long, short):
        wait_until(lambda: long.stopped)
        os.kill(short.pid, signal.SIGKILL)
        wait_until(lambda: not long.stopped)
    assert (short.outcome, long.outcome) == (None, "let")


@pytest.mark.parametrize("seconds", [SHORT, LONG, 2 * LONG])
def test_a_trial_stands_still_while_its_process_does_such_work_itself(seconds):
    with trials(LONG) as [trial]:
        with TURNS.at_work(seconds):
            if seconds <= LONG:
                wait_until(lambda: trial.stopped)
            with trials(SHORT / 2) as [shorter]:
                wait_until(lambda: trial.stopped and not shorter.stopped)
        wait_until(lambda: not trial.stopped)
    assert trial.outcome == "let"


def test_the_time_of_others_does_not_count(monkeypatch):
    monkeypatch.setattr("tandem.guides.trial.SECONDS", 0.2)
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", SECONDS)
    with trials(LONG) as [long], trials(SHORT) as [short]:
        wait_until(lambda: state_of(short.pid) == GONE)  # it hangs, and it is its turn
        wait_until(lambda: state_of(long.pid) == GONE)  # from now on its own time counts
    assert (short.outcome, long.outcome) == (None, None)


SERVER = """
import os, threading, time
from tandem.guides.trial import try_out

def hang():
    os.write(1, b"%d\\n" % os.getpid())  # at once: two copies write to one pipe
    time.sleep(1000)

for seconds in (2, 1):
    threading.Thread(target=try_out, args=(hang, seconds)).start()
"""


def test_no_trial_outlives_its_process():
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    with server:
        pids = [int(server.stdout.readline()) for _ in range(2)]
        wait_until(lambda: STOPPED in map(state_of, pids))
        server.kill()
        wait_until(lambda: [state_of(pid) for pid in pids] == [GONE, GONE])


def test_of_equals_the_first_goes_first():
    shared = Turns()
    pids = [os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}) for _ in range(3)]
    for pid in pids:
        shared.begin(pid, SHORT)
    for number, pid in enumerate(pids):
        wait_until(lambda left=pids[number + 1 :]: all(state_of(pid) == STOPPED for pid in left))
        assert shared.goes(pid)
        assert state_of(pid) != STOPPED
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: shared.end_of(pid) is not None)
    assert not shared._copies


def test_a_copy_whose_end_another_one_was_told_keeps_nobody_waiting():
    shared = Turns()
    pids = [os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}) for _ in range(2)]
    for pid in pids:
        shared.begin(pid, SHORT)
    for pid in pids:
        assert shared.goes(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with pytest.raises(OSError, match="No child"):
            shared.end_of(pid)
    assert not shared._copies


def test_a_turn_of_one_that_waited_long_lasts_a_slice_and_then_it_waits_as_long_again(monkeypatch):
    shared, now = Turns(), 0.0
    monkeypatch.setattr(turns.time, "monotonic", lambda: now)
    long, short = (os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}) for _ in range(2))
    shared.begin(long, LONG)
    shared.begin(short, SHORT)
    whose = []
    steps = (0.9 * turns.PATIENCE_SECONDS, 0.2 * turns.PATIENCE_SECONDS)
    slices = (0.9 * turns.SLICE_SECONDS, 0.2 * turns.SLICE_SECONDS)
    for step in (*steps, *slices, *steps):
        now += step
        assert shared.end_of(long) is None
        assert shared.goes(long) != shared.goes(short)
        whose.append(long if shared.goes(long) else short)
    for pid in (long, short):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert whose == [short, long, long, short, short, long]
