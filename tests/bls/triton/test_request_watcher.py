"""The watcher continues after errors in the requests that it checks."""

import threading
import time
import weakref

import pytest
from live_triton import eventually

from tandem.bls.triton import background
from tandem.bls.triton.background import Watcher


class Looked:
    """A watched request that counts its checks and raises `error`, if given."""

    def __init__(self, error=None):
        self._error = error
        self.closed = False
        self.looks = 0
        self._looked = threading.Condition()

    def check(self, now):
        with self._looked:
            self.looks += 1
            self._looked.notify_all()
        if self._error:
            raise self._error

    def wait_for(self, looks):
        with self._looked:
            return self._looked.wait_for(lambda: self.looks >= looks, 30)


class Unknowable(Looked):
    """A request whose `closed` property raises an error."""

    def __init__(self):
        self.asked = 0

    @property
    def closed(self):
        self.asked += 1
        raise RuntimeError("who knows")


@pytest.fixture
def watch():
    """watch(*periodic_tasks) starts a watcher that ends with the test."""
    started = []

    def start(*periodic_tasks, **more):
        started.append(Watcher(*periodic_tasks, **more))
        return started[-1]

    yield start
    for watcher in started:
        watcher.stop()


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), ValueError("nan")])
def test_an_error_in_a_check_is_logged_once_and_stops_no_checks(watch, error, pb):
    watcher, failing, other = watch(), Looked(error), Looked()
    watcher.add(failing)
    watcher.add(other)
    assert failing.wait_for(3)
    assert other.wait_for(3)
    assert len([line for line in pb.Logger.lines if "failed to check a request" in line]) == 1


def test_an_error_while_publishing_does_not_end_the_watcher(watch):
    after = Looked()

    def rejected():
        raise RuntimeError("a counter only grows")

    watcher, request = watch(rejected, lambda: after.check(0)), Looked()
    watcher.add(request)
    assert request.wait_for(3)
    assert after.wait_for(3)


def test_a_request_is_checked_again_if_its_state_is_unknown(watch):
    watcher, unknowable, other = watch(), Unknowable(), Looked()
    watcher.add(unknowable)
    watcher.add(other)
    assert other.wait_for(3)
    assert unknowable.asked > 1


def test_closed_requests_are_not_checked_again(watch):
    watcher, closed, other = watch(), Looked(), Looked()
    closed.closed = True
    watcher.add(closed)
    watcher.add(other)
    assert other.wait_for(3)
    assert closed.looks == 0


def test_a_logging_error_does_not_end_the_watcher(watch, pb, capsys):
    pb.Logger.full = True
    watcher, failing = watch(), Looked(RuntimeError("boom"))
    watcher.add(failing)
    assert failing.wait_for(3)
    assert "boom" in capsys.readouterr().err


def test_an_idle_watcher_checks_a_new_request_at_once_and_then_again(watch, monkeypatch):
    idle = threading.Event()
    monkeypatch.setattr(background, "IDLE_INTERVAL", 1000.0)
    watcher, request = watch(idle.set), Looked()
    assert idle.wait(30)
    watcher.add(request)
    assert request.wait_for(3)
    request.closed = True


def test_a_closed_request_is_forgotten(watch):
    watcher, closed = watch(), Looked()
    closed.closed, kept = True, weakref.ref(closed)
    watcher.add(closed)
    del closed
    assert eventually(lambda: kept() is None)


def test_neither_many_requests_nor_none_keep_a_core_busy(watch):
    rounds = []
    watcher, requests = watch(lambda: rounds.append(1)), [Looked() for _ in range(500)]
    for request in requests:
        watcher.add(request)
    before = requests[0].looks
    time.sleep(0.5)
    assert requests[0].looks - before <= 2
    for request in requests:
        request.closed = True
    assert eventually(lambda: not watcher._watched)
    rounds.clear()
    time.sleep(0.3)
    assert len(rounds) <= 3


@pytest.mark.parametrize("log", [background.log_warning, background.log_info])
def test_lines_reach_the_servers_log(pb, log):
    log("hello")
    assert pb.Logger.lines == ["tandem: hello"]
