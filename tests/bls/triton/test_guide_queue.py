"""Who waits for whose guides."""

import threading

import pytest

from tandem.bls.errors import Cancelled, Overloaded
from tandem.bls.triton import guide_queue
from tandem.bls.triton.guide_queue import GuideQueue
from tandem.guides.errors import GuideTakesLong

SECONDS = 30
ROOM = 10_000


class State:
    """A request's state, as far as a queue sees it."""

    def __init__(self):
        self.permit, self.closed, self.failure = None, False, None

    def raise_failure(self):
        if self.failure is not None:
            raise self.failure

    def fail(self, error):
        self.failure, self.closed = error, True


class Guide:
    """A guide that is compiled once somebody lets it be."""

    def __init__(self, name, *, attempts=1):
        self.name, self.text, self.attempts = name, name, attempts
        self.tried = threading.Event()
        self.begun, self.let = threading.Event(), threading.Event()


class Guides:
    """Compiles guides one call at a time."""

    def has_all(self, requests):
        return all(request.guide is None for request in requests)

    def matcher(self, request, attempt):
        guide = request.guide
        if guide is None:
            return None
        guide.tried.set()
        if attempt + 1 < guide.attempts:
            raise GuideTakesLong("it takes more than a moment")
        guide.begun.set()
        assert guide.let.wait(SECONDS)
        return guide.name


class Asked:
    """A request on its way through the queue."""

    def __init__(self, queue, *guides):
        self.state, self.matchers, self.went_on = State(), None, threading.Event()
        requests = [type("Request", (), {"guide": guide})() for guide in guides]
        queue.enter(self.state, requests, self.go_on)

    def go_on(self, matchers):
        self.matchers = matchers
        self.went_on.set()

    def result(self):
        assert self.went_on.wait(SECONDS)
        return self.matchers


@pytest.fixture
def queue():
    return GuideQueue(Guides(), ROOM)


def test_a_request_whose_guides_are_known_goes_on_at_once(queue):
    assert Asked(queue, None).matchers == [None]


def test_new_guides_are_compiled_one_after_the_other(queue):
    first, second = Guide("first"), Guide("second")
    one, two = Asked(queue, first), Asked(queue, second)
    assert first.begun.wait(SECONDS)
    second.let.set()
    assert not second.begun.is_set()
    first.let.set()
    assert one.result() == ["first"]
    assert two.result() == ["second"]


def test_guides_that_take_long_hold_up_each_other_alone(queue):
    heavy, heavier = Guide("heavy", attempts=2), Guide("heavier", attempts=2)
    one, two = Asked(queue, heavy), Asked(queue, heavier)
    assert heavy.begun.wait(SECONDS)
    light = Guide("light")
    light.let.set()
    assert Asked(queue, None, light).result() == [None, "light"]
    assert not heavier.begun.is_set()
    heavier.let.set()
    heavy.let.set()
    assert one.result() == ["heavy"]
    assert two.result() == ["heavier"]


def test_a_guide_waits_behind_no_other_that_takes_longer(queue):
    longest, longer = Guide("longest", attempts=3), Guide("longer", attempts=2)
    one = Asked(queue, longest)
    assert longest.begun.wait(SECONDS)
    longer.let.set()
    assert Asked(queue, longer).result() == ["longer"]
    longest.let.set()
    assert one.result() == ["longest"]


def test_who_has_gone_meanwhile_has_nothing_compiled(queue):
    first, second, third = Guide("first"), Guide("second"), Guide("third")
    Asked(queue, first)
    gone, last = Asked(queue, second), Asked(queue, third)
    assert first.begun.wait(SECONDS)
    gone.state.fail(Cancelled())
    for guide in (third, first):
        guide.let.set()
    assert last.result() == ["third"]
    assert not second.begun.is_set()


def test_those_who_wait_hold_no_more_than_fits(queue):
    first, large, one_more = Guide("first"), Guide("x" * ROOM), Guide("one more")
    for guide in (first, large):
        guide.let.set()
    first.let.clear()
    Asked(queue, first)
    waiting = Asked(queue, large)
    with pytest.raises(Overloaded, match="guides that wait hold"):
        Asked(queue, one_more)
    first.let.set()
    assert waiting.result() == [large.name]


def test_a_guide_that_takes_long_is_refused_where_too_many_wait(queue):
    heavy, large, heavier = (Guide(name, attempts=2) for name in ("heavy", "x" * ROOM, "heavier"))
    Asked(queue, heavy)
    assert heavy.begun.wait(SECONDS)
    waiting = Asked(queue, large)
    assert large.tried.wait(SECONDS)  # so it waits with those that are tried no more
    light = Guide("light")
    light.let.set()
    assert Asked(queue, light).result() == ["light"]  # so the large one has passed to the others
    refused = Asked(queue, heavier)
    last = Guide("last")
    last.let.set()
    assert Asked(queue, last).result() == ["last"]
    assert isinstance(refused.state.failure, Overloaded)
    for guide in (heavy, large):
        guide.let.set()
    assert waiting.result() == [large.name]


def test_a_request_with_many_guides_does_not_hold_the_others_up(queue, monkeypatch):
    monkeypatch.setattr(guide_queue, "TURN_SECONDS", 0)
    first, second, light = Guide("first"), Guide("second"), Guide("light")
    batch = Asked(queue, first, None, second)
    first.let.set()
    light.let.set()
    assert Asked(queue, light).result() == ["light"]
    second.let.set()
    assert batch.result() == ["first", None, "second"]
