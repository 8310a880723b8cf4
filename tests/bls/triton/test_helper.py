"""A sequence's second thread: drafts ahead are made beside verifications, and hold nothing up."""

import threading
import time

import numpy as np
import pytest
import triton_python_backend_utils as triton
from scripted import (
    ENDLESS,
    SETTINGS,
    BranchingDraft,
    Target,
    decoding_of,
    expected,
    ids,
    with_engines,
)

from tandem.bls.effects import Branching, Draft, EngineCall
from tandem.bls.errors import Cancelled, EngineTimeout
from tandem.bls.request import Request
from tandem.bls.settings import MAX_HELPERS
from tandem.bls.triton import helper as module
from tandem.bls.triton.clients import EngineClients
from tandem.bls.triton.driver import Driver
from tandem.bls.triton.engine_caller import SECONDS_BETWEEN_STOPS
from tandem.bls.triton.helper import Helper
from tandem.contract import engine as tensors

PATIENCE = 30
AHEAD = with_engines(SETTINGS, draft={"branches": True})
REQUEST = Request(
    prompt_ids=ids(1, 2, 3),
    max_tokens=60,
    drafter="draft_model",
    draft_len=4,
    draft_ahead=True,
    streams_text=True,  # which another thread makes
)


class Engines:
    """Both engines behind Triton's calls.

    hold: is called before a call is answered, with its kind: draft, target or branches.
    drafts_ahead: the first verification waits for the branches beside it; a sequence may end before
        its helper's thread has begun otherwise.
    stops: the requests that were told to stop.
    """

    def __init__(self, *, hold=lambda kind, request_id: None, drafts_ahead=True):
        self.target = Target(ENDLESS, ())
        self.draft = BranchingDraft(ENDLESS, unsure_every=10**9)
        self.stops = []
        self.threads = {"draft": set(), "target": set(), "branches": set()}
        self._hold = hold
        self._branches_came = threading.Event()
        if not drafts_ahead:
            self._branches_came.set()
        self._lock = threading.Lock()

    def __call__(self, request):
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.given["inputs"]}
        if tensors.STOP in arrays:
            self.stops.append(request.given["request_id"])
            return triton.InferenceResponse([])
        call = call_of(request.model_name, arrays)
        with self._lock:
            kind = request.model_name if call.branching is None else "branches"
            self.threads[kind].add(threading.get_ident())
            engine = getattr(self, call.engine)
            answer = next(engine.answers(call))
        if kind == "branches":
            self._branches_came.set()
        if kind == "target" and call.draft.tokens.size:
            assert self._branches_came.wait(PATIENCE)
        self._hold(kind, request.given["request_id"])
        return response_of(call, answer)


def call_of(engine, arrays):
    counts = arrays.get(tensors.BRANCH_COUNTS)
    branching = None
    if counts is not None:
        lengths = arrays[tensors.BRANCH_OUTPUT_LEN]
        branching = Branching(tuple(counts[0].tolist()), tuple(lengths[0].tolist()))
    draft = arrays.get(tensors.DRAFT_INPUT_IDS, np.empty((1, 0), np.int32))[0]
    return EngineCall(
        engine=engine,
        context=arrays[tensors.INPUT_IDS][0],
        max_new_tokens=int(arrays[tensors.REQUEST_OUTPUT_LEN][0, 0]),
        seed=0,
        draft=Draft(draft),
        branching=branching,
    )


def response_of(call, answer):
    outputs = {
        tensors.OUTPUT_IDS: answer.tokens[np.newaxis, np.newaxis],
        tensors.SEQUENCE_LENGTH: np.array([[len(answer.tokens)]], np.int32),
    }
    if call.branching is not None:
        longest = max((len(branch.tokens) for branch in answer.branches), default=0)
        rows = np.zeros((1, len(answer.branches), longest), np.int32)
        for row, branch in zip(rows[0], answer.branches, strict=True):
            row[: len(branch.tokens)] = branch.tokens
        outcomes = [(branch.num_accepted, branch.next_token) for branch in answer.branches]
        lengths = [len(branch.tokens) for branch in answer.branches]
        outputs[tensors.BRANCH_OUTCOMES] = np.array([outcomes], np.int32).reshape(1, -1, 2)
        outputs[tensors.BRANCH_IDS] = rows
        outputs[tensors.BRANCH_LENGTHS] = np.array([lengths], np.int32)
    return triton.InferenceResponse([triton.Tensor(name, a) for name, a in outputs.items()])


class Receiver:
    """Notes the chunks and the end."""

    def __init__(self):
        self.tokens = []
        self.done = threading.Event()  # the last chunk is there
        self.end = threading.Event()
        self.error = None

    def deliver(self, chunk):
        self.tokens += chunk.tokens.tolist()
        if chunk.finish_reason is not None:
            self.done.set()

    def ended(self, error):
        self.error = error
        self.end.set()


class Held:
    """Holds calls with branches until they are let go."""

    def __init__(self):
        self.ids = []
        self.arrived = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, kind, request_id):
        if kind == "branches":
            self.ids.append(request_id)
            self.arrived.set()
            assert self.let_go.wait(PATIENCE)


@pytest.fixture
def held():
    holding = Held()
    yield holding
    holding.let_go.set()


def started(pb, engines, clients=None):
    """A sequence that decodes; its driver, what it hands out, and its statistics."""
    pb.InferenceRequest.answer = engines
    decoding, receiver = decoding_of(REQUEST, AHEAD), Receiver()
    clients = clients or EngineClients(AHEAD)
    driver = Driver(clients, decoding.decode(), REQUEST, receiver)
    driver.start()
    return driver, receiver, decoding.statistics


def eventually(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_one_thread_more_drafts_beside_the_verifications(pb):
    engines = Engines()
    clients = EngineClients(AHEAD)
    _, receiver, statistics = started(pb, engines, clients)
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_calls > 0
    assert statistics.num_drafter_failures == 0
    assert engines.threads["target"] >= engines.threads["draft"]
    assert len(engines.threads["branches"]) == 1
    assert engines.threads["branches"].isdisjoint(engines.threads["target"])
    for _ in range(MAX_HELPERS):  # all are free again
        assert clients.helpers.acquire(blocking=False)


def test_branches_that_hang_hold_up_neither_a_round_nor_the_answer(pb, held):
    engines = Engines(hold=held)
    driver, receiver, statistics = started(pb, engines)
    assert receiver.done.wait(PATIENCE)
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_hits == 0
    assert len(held.ids) == 1  # while it hangs nothing more is drafted ahead
    eventually(lambda: held.ids[0] in engines.stops)
    # The draft engine still works for the sequence, which keeps its reservation until it is over.
    driver.check(time.monotonic())
    assert not receiver.end.is_set()
    held.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None


def test_a_draft_engine_that_died_is_given_up_at_its_time_out(pb, held):
    clients = EngineClients(AHEAD)
    driver, receiver, _ = started(pb, Engines(hold=held), clients)
    assert receiver.done.wait(PATIENCE)
    driver.check(time.monotonic() + AHEAD.draft.timeout + 1)
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert clients.abandoned.by_model == {"draft": 1}
    assert all(clients.helpers.acquire(blocking=False) for _ in range(MAX_HELPERS))
    held.let_go.set()
    eventually(lambda: clients.abandoned.by_model == {"draft": 0})


def test_cancelling_stops_both_calls_and_the_end_waits_for_both(pb, held):
    verified = threading.Event()

    def hold_both(kind, request_id):
        """The branches, and the verification beside them."""
        held(kind, request_id)
        if kind == "target":
            assert verified.wait(PATIENCE)

    engines = Engines(hold=hold_both)
    driver, receiver, _ = started(pb, engines)
    assert held.arrived.wait(PATIENCE)
    driver.interrupt(Cancelled())
    eventually(lambda: len(set(engines.stops)) == 2)
    assert held.ids[0] in engines.stops
    verified.set()
    assert not receiver.end.wait(0.05)
    held.let_go.set()
    assert receiver.end.wait(PATIENCE)
    assert isinstance(receiver.error, Cancelled)


def test_without_a_free_helper_nothing_is_drafted_ahead(pb):
    clients = EngineClients(AHEAD)
    for _ in range(MAX_HELPERS):
        clients.helpers.acquire()
    engines = Engines(drafts_ahead=False)
    _, receiver, statistics = started(pb, engines, clients)
    assert receiver.end.wait(PATIENCE)
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_branches == 0
    assert not engines.threads["branches"]


def test_branches_that_fail_cost_the_draft_its_rest_and_the_text_nothing(pb):
    def fail(kind, request_id):
        if kind == "branches":
            raise triton.TritonModelException("it broke")

    _, receiver, statistics = started(pb, Engines(hold=fail))
    assert receiver.end.wait(PATIENCE)
    assert receiver.error is None
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert statistics.ahead.num_hits == 0


class Panic(BaseException):
    """What a library in Rust raises is no Exception."""


@pytest.mark.parametrize("error", [RuntimeError, Panic])
def test_what_goes_wrong_in_the_helper_is_logged_and_costs_the_text_nothing(pb, error):
    def wrong(kind, request_id):
        if kind == "branches":
            raise error("boom")

    _, receiver, _ = started(pb, Engines(hold=wrong))
    assert receiver.end.wait(PATIENCE)
    assert receiver.tokens == expected(REQUEST, ENDLESS)[0]
    assert any("boom" in line for line in pb.Logger.lines)


class Steps:
    """Steps of so many draft calls; `made` counts those that were answered."""

    def __init__(self, calls):
        self.made = 0
        self._calls = calls

    def __call__(self):
        for _ in range(self._calls):
            yield EngineCall("draft", REQUEST.prompt_ids, 1, seed=0)
            self.made += 1
        return self.made


def test_steps_that_are_given_up_before_their_thread_begins_make_no_call(pb, monkeypatch):
    threads, given_up, wanted = [], Steps(1), Steps(1)
    monkeypatch.setattr(module, "in_background", threads.append)
    pb.InferenceRequest.answer = Engines()
    helper = Helper.if_free(EngineClients(AHEAD), REQUEST)
    task = helper.begin(given_up())
    helper.stop()
    assert helper.begin(wanted()) is None  # one after the other
    threading.Thread(target=threads[0], daemon=True).start()
    assert task.done_within(PATIENCE)
    assert given_up.made == 0
    task = helper.begin(wanted())
    assert task.done_within(PATIENCE)
    assert task.result == wanted.made == 1
    helper.close(lambda: None)


class HeldDraft:
    """Holds all calls until they are let go."""

    def __init__(self):
        self.arrived, self.let_go = threading.Event(), threading.Event()

    def __call__(self, kind, request_id):
        self.arrived.set()
        assert self.let_go.wait(PATIENCE)


@pytest.fixture
def working(pb):
    """A helper in the first of two calls: itself, what it shares, its steps, the task, the hold."""
    hold, steps, clients = HeldDraft(), Steps(2), EngineClients(AHEAD)
    pb.InferenceRequest.answer = Engines(hold=hold)
    helper = Helper.if_free(clients, REQUEST)
    task = helper.begin(steps())
    assert hold.arrived.wait(PATIENCE)
    yield helper, clients, steps, task, hold
    hold.let_go.set()


def all_are_free(clients):
    """Whether nobody has a helper; they are as free as before."""
    taken = [clients.helpers.acquire(blocking=False) for _ in range(MAX_HELPERS)]
    for _ in filter(None, taken):
        clients.helpers.release()
    return all(taken)


def test_steps_that_are_given_up_during_a_call_make_no_other_one(pb, working):
    helper, _, steps, task, hold = working
    helper.stop()
    eventually(lambda: len(pb.InferenceRequest.answer.stops) == 1)
    hold.let_go.set()
    assert task.done_within(PATIENCE)
    assert steps.made == 1
    with pytest.raises(Cancelled):
        _ = task.result
    helper.close(lambda: None)


def test_a_stop_that_overtook_a_helpers_call_is_sent_again(pb, working):
    helper, *_ = working
    stops = pb.InferenceRequest.answer.stops
    helper.stop()
    eventually(lambda: len(stops) == 1)
    helper.check(time.monotonic() + SECONDS_BETWEEN_STOPS)
    eventually(lambda: len(stops) == 2)


@pytest.mark.parametrize("stopped", [False, True])
def test_branches_of_a_call_that_was_stopped_are_left_out(pb, stopped):
    """They were cut short, and would teach that such calls take next to no time."""
    hold = HeldDraft()
    pb.InferenceRequest.answer = Engines(hold=hold)
    helper = Helper.if_free(EngineClients(AHEAD), REQUEST)
    call = EngineCall("draft", REQUEST.prompt_ids, 4, 0, Draft(ids(4)), Branching((0, 1), (0, 2)))

    def steps():
        answer = yield call
        came.append(len(answer.branches))

    came = []
    task = helper.begin(steps())
    assert hold.arrived.wait(PATIENCE)
    if stopped:
        helper.stop()
    hold.let_go.set()
    assert task.done_within(PATIENCE)
    assert came == [0 if stopped else 1]
    helper.close(lambda: None)


def test_a_helper_whose_call_is_overdue_leaves_its_place_and_takes_no_more_steps(working):
    helper, clients, _, task, _ = working
    helper.check(time.monotonic())
    assert not helper.lost
    helper.check(time.monotonic() + AHEAD.draft.timeout + 1)
    assert task.done_within(0)
    with pytest.raises(EngineTimeout):
        _ = task.result
    assert helper.lost
    assert helper.begin(Steps(1)()) is None
    assert all_are_free(clients)
    ended = []
    helper.close(lambda: ended.append(1))
    assert ended == [1]
    assert all_are_free(clients)


def test_a_helper_that_is_closed_during_a_call_leaves_its_place_when_the_call_is_over(working):
    helper, clients, steps, _, hold = working
    ended = threading.Event()
    helper.close(ended.set)
    assert not ended.is_set()
    assert not all_are_free(clients)
    hold.let_go.set()
    assert ended.wait(PATIENCE)
    assert steps.made == 1
    assert all_are_free(clients)
