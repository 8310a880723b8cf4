"""Models that die, fail, hang or are late: who hears of it, and that nobody else does."""

import os
import signal
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path

import pytest
from crowd import Crowd, answers_of, ask, controls, idle, metric, prompts_of, wrong
from live_triton import eventually
from metrics import Change, computed, settle

PROMPTS = prompts_of(8)
LONG = 300
TIMEOUTS = {"target": 4.0, "draft": 2.0, "drafter_pause": 0.5}


@pytest.fixture(scope="module")
def server(fallible):
    with fallible(timeouts=TIMEOUTS) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(fallible):
    """A server that waits less for drafts than a late one takes, which is 0.6 s."""
    with fallible(timeouts={"draft": 0.3, "drafter_pause": 0.1, "request": 3.0}) as running:
        yield running


@pytest.fixture(scope="module")
def long_answers(server):
    return controls(server, PROMPTS, max_tokens=LONG)


@pytest.fixture
def healthy(server):
    """The server, left as it was: nothing under way, and the draft answers."""
    yield server
    assert eventually(lambda: idle(server) and drafts(server))


def drafts(server):
    return ask(server, "x = 1", max_tokens=8).draft_tokens > 0


def process_of(server, model):
    """The stub of a model."""
    for pid in server.processes:
        if f"/{model}/1/model.py" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError(f"no process of {model}")


@contextmanager
def standing_still(pid):
    """A process that answers nothing, not even a `stop`."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def threads_of_the_loop(server):
    return len(os.listdir(f"/proc/{process_of(server, 'bls_stream')}/task"))


def assert_one_line(error, *words):
    assert error
    assert "\n" not in error
    assert "Traceback" not in error
    assert ".py" not in error
    for word in words:
        assert word in error, error


class TritonDied(Exception):
    """Triton ended itself: a SIGKILL hit a stub inside the lock of their shared memory."""


def told_alive(streams):
    """All answers. Triton's own death under a kill (boost's lock_exception) is no fault of ours."""
    answers = answers_of(streams)
    if any("Socket closed" in str(answer.error) for answer in answers):
        raise TritonDied
    return answers


def again_where_triton_dies(test):
    """Run a test that kills a process up to five times, until Triton outlives the kill."""

    @wraps(test)
    def run(fallible):
        for _ in range(4):
            with suppress(TritonDied):
                return test(fallible)
        return test(fallible)

    return run


@again_where_triton_dies
def test_answers_go_on_without_drafts_when_the_draft_is_killed(fallible):
    with fallible(timeouts=TIMEOUTS | {"target": 60.0}) as server, Crowd(server, 8) as crowd:
        expected = controls(server, PROMPTS, max_tokens=LONG)
        streams = crowd.ask(PROMPTS, max_tokens=LONG, draft_ahead="true")
        crowd.wait_until_all_talk()
        os.kill(process_of(server, "draft"), signal.SIGKILL)
        answers = told_alive(streams)
        assert wrong(answers, expected) == []
        assert all(answer.draft_tokens > 0 for answer in answers)
        settle(server)
        lost = metric(server, "tandem_abandoned_calls", engine="draft")
        later = told_alive(crowd.ask(PROMPTS, max_tokens=LONG))
        assert wrong(later, expected) == []
        assert not any(answer.draft_tokens for answer in later)
        settle(server)
        assert (
            metric(server, "tandem_abandoned_calls", engine="draft") <= lost
        )  # nobody waited again


@pytest.mark.heavy
@again_where_triton_dies
def test_requests_end_at_their_time_out_when_the_target_is_killed(fallible):
    with fallible(timeouts=TIMEOUTS) as server, Crowd(server, 4) as crowd:
        streams = crowd.ask(PROMPTS[:4], max_tokens=LONG)
        crowd.wait_until_all_talk()
        os.kill(process_of(server, "target"), signal.SIGKILL)
        # Triton does not always notice that a stub is dead; then the time-out of a call ends it.
        unavailable, late = (
            f"model_{reason}: model 'target' failed: " for reason in ("unavailable", "timeout")
        )
        for answer in [*told_alive(streams), ask(server, "x")]:
            assert_one_line(answer.error)
            assert answer.error.startswith((unavailable, late))
        assert eventually(lambda: idle(server))


def test_answers_go_on_and_drafts_come_back_when_the_draft_failed(healthy, long_answers):
    with healthy.faults.of("draft", "raise"), Crowd(healthy, 8) as crowd:
        answers = answers_of(crowd.ask(PROMPTS, max_tokens=LONG))
    assert wrong(answers, long_answers) == []
    assert not any(answer.draft_tokens for answer in answers)
    assert eventually(lambda: drafts(healthy))


@pytest.mark.parametrize("ahead", ["true", "false"])
def test_answers_go_on_when_the_draft_hangs_for_a_while(healthy, long_answers, ahead):
    with Crowd(healthy, 8) as crowd:
        streams = crowd.ask(PROMPTS, max_tokens=LONG, draft_ahead=ahead)
        crowd.wait_until_all_talk()
        with healthy.faults.of("draft", "hold"):
            assert wrong(answers_of(streams), long_answers) == []


@pytest.mark.heavy
def test_drafts_that_come_late_are_not_waited_for_twice(impatient):
    [expected] = controls(impatient, ["x = 1"])
    with impatient.faults.of("draft", "late"):
        assert eventually(lambda: not drafts(impatient))
        settle(impatient)
        failures = metric(impatient, "tandem_drafter_failures_total")
        for _ in range(8):
            assert ask(impatient, "x = 1").said == expected
        settle(impatient)
        assert metric(impatient, "tandem_drafter_failures_total") == failures
    assert eventually(lambda: drafts(impatient))


@pytest.mark.heavy
def test_a_request_ends_with_one_line_when_the_profiles_time_is_up(impatient):
    with impatient.faults.of("target", "late"):
        answer = ask(impatient, "x = 1", max_tokens=LONG)
    line = "the request took longer than 3 s, which is its time-out"
    assert answer.error == f"deadline_exceeded: {line}"
    assert eventually(lambda: idle(impatient))


@pytest.mark.parametrize("drafter", ["draft_model", "none"])
def test_one_request_ends_with_its_line_when_the_target_fails(healthy, long_answers, drafter):
    # None of them can end before the fault begins: until then the target is late.
    with Crowd(healthy, 8) as crowd, healthy.faults.of("target", "late"):
        streams = crowd.ask(PROMPTS, max_tokens=LONG, drafter=drafter)
        crowd.wait_until_all_talk()
        healthy.faults.begin("target", "raise once")
        answers = answers_of(streams)
    [failed] = [answer for answer in answers if answer.error]
    assert_one_line(failed.error, "model 'target'", "the call failed: RuntimeError")
    assert failed.ids
    for answer, expected in zip(answers, long_answers, strict=True):
        assert answer.error or answer.said == expected


@pytest.mark.parametrize("drafter", ["draft_model", "none"])
def test_one_request_ends_at_the_time_out_when_the_target_loses_it(healthy, long_answers, drafter):
    with Crowd(healthy, 8) as crowd:
        healthy.faults.begin("target", "lose once")
        answers = answers_of(crowd.ask(PROMPTS, max_tokens=LONG, drafter=drafter))
    [failed] = [answer for answer in answers if answer.error]
    assert_one_line(failed.error, "model_timeout: model 'target' failed: no answer within 4 s")
    for answer, expected in zip(answers, long_answers, strict=True):
        assert answer.error or answer.said == expected


@pytest.mark.heavy
def test_server_serves_on_when_the_target_hung_for_a_while(healthy, long_answers):
    settle(healthy)
    lost = metric(healthy, "tandem_abandoned_calls")
    with Crowd(healthy, 8) as crowd:
        with healthy.faults.of("target", "hold"):
            for answer in answers_of(crowd.ask(PROMPTS, max_tokens=LONG)):
                assert_one_line(answer.error, "model_timeout: model 'target' failed: no answer")
        answers = answers_of(crowd.ask(PROMPTS, max_tokens=LONG))
    assert wrong(answers, long_answers) == []
    assert eventually(lambda: metric(healthy, "tandem_abandoned_calls") == lost)  # they came back


def test_request_that_failed_before_its_first_token_has_no_time_to_it(healthy):
    change = Change(healthy)
    with healthy.faults.of("target", "raise"):
        assert_one_line(ask(healthy, "x = 1", max_tokens=8).error, "model 'target' failed")
    answer = ask(healthy, "x = 1", max_tokens=8)  # counted after the one that failed
    change.until_ended(1)
    assert change.of("tandem_time_to_first_token_seconds_count") == 1
    assert change.of("tandem_rounds_total") == answer.rounds


def test_room_comes_back_when_a_request_is_given_up_by_its_client_while_the_target_hangs(healthy):
    with healthy.faults.of("target", "hold"):
        assert "took longer than 0.5 s" in ask(healthy, "x = 1", timeout=500_000).error
        assert eventually(lambda: idle(healthy))


@pytest.mark.heavy
@again_where_triton_dies
def test_stopping_the_calls_of_an_engine_that_hangs_takes_no_thread_each(fallible):
    with fallible(timeouts=TIMEOUTS) as server, Crowd(server, 12) as crowd:
        before = threads_of_the_loop(server)
        with standing_still(process_of(server, "target")):
            for answer in told_alive(crowd.ask(["x = 1"] * 12, timeout=500_000)):
                assert "took longer than 0.5 s" in answer.error
            assert eventually(lambda: idle(server))
            spare = 4
            assert threads_of_the_loop(server) <= before + 12 + spare  # 12 calls were given up


@pytest.mark.parametrize(
    ("model", "fault", "entry"),
    [
        ("preprocessing", "raise", "bls_stream"),
        ("postprocessing", "raise", "bls"),
        ("preprocessing", "hold", "bls"),
        ("postprocessing", "hold", "bls_stream"),
    ],
)
def test_request_ends_with_one_line_when_a_tokenizer_fails(healthy, model, fault, entry):
    words = f"model '{model}' failed: "
    if fault == "hold":
        words = f"model_timeout: {words}no answer within 4 s"
    with healthy.faults.of(model, fault):
        assert_one_line(ask(healthy, "x = 1", model=entry).error, words)


def test_target_stops_when_the_text_of_a_long_answer_fails(healthy):
    settle(healthy)
    before = computed(healthy)
    # So late that the answer goes on when the fault begins, however slow this thread is.
    with Crowd(healthy, 1) as crowd, healthy.faults.of("target", "late"):
        [stream] = crowd.ask(["x = 1"], max_tokens=LONG, drafter="none")
        crowd.wait_until_all_talk()
        with healthy.faults.of("postprocessing", "raise"):
            [answer] = answers_of([stream])
    assert_one_line(answer.error, "model 'postprocessing' failed")
    assert computed(healthy) - before < LONG
