"""Models die, fail, hang or are slow, but requests fail only if the target fails."""

import os
import queue
import resource
import signal
import threading
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import wraps

import pytest
import tritonclient.grpc as client
from benchmarks.soak.processes import is_at_rest, stub_pid
from crowd import Crowd, answers_of, ask, controls, prompts_of, wrong
from entries import OUTPUTS, ask_one, chunks_from, inputs, joined, streaming
from live_triton import eventually
from metrics import settle, total
from tritonclient.utils import InferenceServerException

PROMPTS = prompts_of(8)
LONG = 200
TIMEOUTS = {"target": 5.0, "draft": 1.5, "drafter_pause": 0.5}
STEP_MS = {"target": 5.0}


@pytest.fixture(scope="module")
def server(fallible):
    with fallible(timeouts=TIMEOUTS, step_ms=STEP_MS) as running:
        yield running


@pytest.fixture(scope="module")
def long_answers(server):
    return controls(server, PROMPTS, max_tokens=LONG)


@pytest.fixture
def healthy(server):
    """The server, which is idle and has a working draft engine again after the test."""
    yield server
    assert eventually(lambda: is_at_rest(server) and drafts(server))


def drafts(server):
    return ask(server, "x = 1", max_tokens=8).draft_tokens > 0


def assert_one_line(error, *words):
    assert error
    assert "\n" not in error
    assert "Traceback" not in error
    assert ".py" not in error
    for word in words:
        assert word in error, error


class TritonDied(Exception):
    """Triton died because a killed stub held the lock of Triton's shared memory."""


def answers_of_living(streams):
    """Return all answers, or raise TritonDied if Triton itself died (boost's lock_exception)."""
    answers = answers_of(streams)
    if any("Socket closed" in str(answer.error) for answer in answers):
        raise TritonDied
    return answers


def retry_if_triton_dies(test):
    """Repeat a test that kills a stub if Triton also dies. Run the test at most five times."""

    @wraps(test)
    def run(fallible):
        for _ in range(4):
            with suppress(TritonDied):
                return test(fallible)
        return test(fallible)

    return run


@pytest.mark.heavy
@retry_if_triton_dies
def test_answers_continue_without_drafts_if_the_draft_engine_is_killed(fallible):
    with (
        fallible(timeouts={"draft": 5.0}, step_ms=STEP_MS) as server,
        Crowd(server, 8) as crowd,
    ):
        expected = controls(server, PROMPTS, max_tokens=LONG)
        # The target is late until the draft engine dies, so no answer can end before that.
        with server.faults.inject("target", "late"):
            streams = crowd.ask(PROMPTS, max_tokens=LONG, draft_ahead="true")
            crowd.wait_until_all_talk()
            os.kill(stub_pid(server, "draft"), signal.SIGKILL)
        answers = answers_of_living(streams)
        assert wrong(answers, expected) == []
        assert all(answer.draft_tokens > 0 for answer in answers)
        settle(server)
        lost = total(server, "tandem_abandoned_calls", engine="draft")
        later = answers_of_living(crowd.ask(PROMPTS, max_tokens=LONG))
        assert wrong(later, expected) == []
        assert not any(answer.draft_tokens for answer in later)
        settle(server)
        # No call waited for the draft engine again.
        assert total(server, "tandem_abandoned_calls", engine="draft") <= lost


@pytest.mark.heavy
@retry_if_triton_dies
def test_requests_end_at_their_timeout_if_the_target_is_killed(fallible):
    with (
        fallible(timeouts=TIMEOUTS) as server,
        Crowd(server, 4) as crowd,
        server.faults.inject("target", "late"),  # so no answer can end before the kill
    ):
        streams = crowd.ask(PROMPTS[:4], max_tokens=4 * LONG)
        crowd.wait_until_all_talk()
        os.kill(stub_pid(server, "target"), signal.SIGKILL)
        # If Triton doesn't notice that a stub is dead, the call ends at its timeout.
        unavailable, late = (
            f"model_{reason}: model 'target' failed: " for reason in ("unavailable", "timeout")
        )
        for answer in [*answers_of_living(streams), ask(server, "x")]:
            assert_one_line(answer.error)
            assert answer.error.startswith((unavailable, late))
        assert eventually(lambda: is_at_rest(server))


def test_answers_continue_during_a_draft_failure_and_drafts_resume_afterward(healthy, long_answers):
    with healthy.faults.inject("draft", "raise"), Crowd(healthy, 8) as crowd:
        answers = answers_of(crowd.ask(PROMPTS, max_tokens=LONG))
    assert wrong(answers, long_answers) == []
    assert not any(answer.draft_tokens for answer in answers)
    assert eventually(lambda: drafts(healthy))


def test_answers_continue_while_the_draft_engine_hangs(healthy, long_answers):
    with Crowd(healthy, 8) as crowd:
        streams = crowd.ask(PROMPTS, max_tokens=LONG, draft_ahead="true")
        crowd.wait_until_all_talk()
        with healthy.faults.inject("draft", "hold"):
            assert wrong(answers_of(streams), long_answers) == []


@pytest.mark.heavy
def test_a_request_fails_with_a_one_line_error_at_the_profiles_timeout(fallible):
    with fallible(timeouts={"request": 1.0}) as server, server.faults.inject("target", "late"):
        answer = ask(server, "x = 1", max_tokens=LONG)
        assert answer.error == "deadline_exceeded: the request exceeded its timeout of 1 s"
        assert eventually(lambda: is_at_rest(server))


def test_a_single_target_failure_fails_only_one_request(healthy, long_answers):
    # The target is late until the fault begins, so no request can end before that.
    with Crowd(healthy, 8) as crowd, healthy.faults.inject("target", "late"):
        streams = crowd.ask(PROMPTS, max_tokens=LONG)
        crowd.wait_until_all_talk()
        healthy.faults.begin("target", "raise once")
        answers = answers_of(streams)
    [failed] = [answer for answer in answers if answer.error]
    assert_one_line(failed.error, "model 'target' failed: the call failed: RuntimeError")
    assert failed.ids
    for answer, expected in zip(answers, long_answers, strict=True):
        assert answer.error or answer.said == expected


def test_a_request_lost_by_the_target_ends_at_the_engine_timeout(healthy, long_answers):
    with Crowd(healthy, 8) as crowd:
        healthy.faults.begin("target", "lose once")
        answers = answers_of(crowd.ask(PROMPTS, max_tokens=LONG))
    [failed] = [answer for answer in answers if answer.error]
    assert_one_line(failed.error, "model_timeout: model 'target' failed: no response within 5 s")
    for answer, expected in zip(answers, long_answers, strict=True):
        assert answer.error or answer.said == expected


def test_a_timed_out_request_frees_its_slot_while_the_target_hangs(healthy):
    with healthy.faults.inject("target", "hold"):
        assert "exceeded its timeout of 0.5 s" in ask(healthy, "x = 1", timeout=500_000).error
        assert eventually(lambda: is_at_rest(healthy))


def test_a_failed_tokenizer_is_reported_in_one_line(healthy):
    with healthy.faults.inject("preprocessing", "raise"):
        assert_one_line(ask(healthy, "x = 1").error, "model 'preprocessing' failed: ")


def test_a_request_ends_at_its_timeout_if_the_tokenizer_hangs(healthy):
    with healthy.faults.inject("preprocessing", "hold"):
        line = "model_timeout: model 'preprocessing' failed: no response within 5 s"
        assert_one_line(ask(healthy, "x = 1", model="bls").error, line)


def test_answers_have_text_if_postprocessing_fails(healthy):
    with healthy.faults.inject("postprocessing", "raise"):
        assert ask(healthy, "x = 1").text


@pytest.mark.heavy
def test_clients_that_leave_during_long_steps_are_not_counted_as_faults(fallible):
    """An engine doesn't read a `stop` during a step, and that isn't a fault."""
    room = 32  # maximum number of lost calls of a model
    with (
        fallible(timeouts={"target": 30.0}, admission={"max_requests": room}) as server,
        Crowd(server, room + 1) as crowd,
    ):
        with server.faults.inject("target", "hold"):
            for answer in answers_of(crowd.ask(["x"] * room, drafter="none", timeout=300_000)):
                assert "exceeded its timeout of 0.3 s" in answer.error
            [other] = crowd.ask(["x"], drafter="none")
            assert not wait([other], timeout=4).done
            assert total(server, "tandem_abandoned_calls") == 0
        [answer] = answers_of([other])
        assert (answer.error, len(answer.ids)) == ("", 24)
        assert eventually(lambda: is_at_rest(server))


@contextmanager
def no_more_shared_memory(server, model):
    """Prevent a model's process from allocating more shared memory."""
    pid = stub_pid(server, model)
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def logits_of(server, entry):
    """Return the logits of eight prompts in one answer (3 MB)."""
    values = {"max_tokens": 30, "end_id": -1, "return_generation_logits": True}
    with client.InferenceServerClient(server.grpc_url) as connection:
        return connection.infer(entry, inputs(PROMPTS, **values)).as_numpy("generation_logits")


@pytest.mark.heavy
def test_an_answer_that_does_not_fit_into_shared_memory_ends_its_request(fallible):
    """The target's answer to each prompt fits, but the answer to the whole request doesn't."""
    with fallible(admission={"max_requests": 1}) as server:
        for entry in ("bls", "ensemble"):
            with no_more_shared_memory(server, "bls_stream"):
                with pytest.raises(InferenceServerException) as rejected:
                    logits_of(server, entry)
                assert rejected.value.status() == "StatusCode.INTERNAL"
                line = "the answer can't be sent: it doesn't fit"
                assert rejected.value.message().startswith(line)
                assert ask_one(server, entry, "x", max_tokens=4).finish_reason == "length"
                with streaming(server, "def leave(", max_tokens=400, end_id=-1) as chunks:
                    next(chunks)
                assert eventually(lambda: is_at_rest(server))
            assert total(server, "tandem_abandoned_calls") == 0


@pytest.mark.heavy
def test_a_client_that_does_not_read_does_not_delay_others(healthy, long_answers):
    length = 450
    [expected] = controls(healthy, PROMPTS[:1], max_tokens=length)
    reads, arrived = threading.Event(), queue.Queue()

    def take(result, error):
        reads.wait(120)
        arrived.put((result, error))

    with client.InferenceServerClient(healthy.grpc_url) as connection, Crowd(healthy, 8) as crowd:
        connection.start_stream(take)
        connection.async_stream_infer(
            "bls_stream",
            inputs(PROMPTS[0], max_tokens=length, end_id=-1, stream=True),
            outputs=[client.InferRequestedOutput(name) for name in OUTPUTS],
            enable_empty_final_response=True,
        )
        assert wrong(answers_of(crowd.ask(PROMPTS, max_tokens=LONG)), long_answers) == []
        assert eventually(lambda: is_at_rest(healthy))  # the slow client's decoding has ended too
        assert arrived.empty()
        reads.set()
        assert joined(list(chunks_from(arrived))).said == expected
