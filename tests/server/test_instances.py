"""Clients see no difference if two loops serve one entry."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import entries
import pytest
import tritonclient.grpc as client
from benchmarks.soak.processes import is_at_rest
from crowd import Crowd, answers_of, ask, controls, prompts_of, wrong
from live_triton import ObedientServer, eventually
from metrics import Change, scrape, total
from tritonclient.utils import InferenceServerException

from tandem.contract import entry as tensors
from tandem.contract.forwarding import new_forwarded_id
from tandem.tools.errors import TandemError
from tandem.tools.triton.supervisor import process_names

from .conftest import emulated_zero, serving

PROMPTS = prompts_of(8)
LONG = 1500
ENDLESS = 8000
TRITONS_OWN_END = ("Triton ended", "supervisor")  # after a SIGKILL, as in test_faults


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("instances")
    step_ms = {"target": 5.0, "draft": 1.0}
    planned = emulated_zero(folder, step_ms=step_ms, instances=2)
    with serving(planned, folder, ObedientServer) as running:
        yield running


def by_loop(server, name):
    """Return the sum of a metric's samples for each loop."""
    sums = {}
    for (sample, labels), value in scrape(server).items():
        if sample == name:
            loop = dict(labels)["loop"]
            sums[loop] = sums.get(loop, 0) + value
    return sums


def running(server):
    return total(server, "tandem_requests_running")


@pytest.mark.heavy
def test_a_request_from_before_a_reload_can_still_be_stopped(server):
    """Reload twice, because loops must find each other after every reload.

    This test must run first. After 64 concurrent requests, Triton 2.51 never ends unloaded loops.
    """
    for _ in range(2):
        request_id = new_forwarded_id()
        with call(server, request_id, *entries.inputs("x", **endless())) as answers:
            next(answers)
            with client.InferenceServerClient(server.grpc_url) as connection:
                connection.unload_model("bls_stream")
                connection.load_model("bls_stream")
            with call(server, request_id, entries.tensor(tensors.STOP, True)) as nothing:
                assert list(nothing) == []
            with pytest.raises(InferenceServerException, match="cancelled"):
                list(answers)
        assert eventually(lambda: process_names(server.processes).count("bls_stream") == 2)


def test_both_loops_serve_and_their_counters_add_up(server):
    change = Change(server)
    with Crowd(server, 24) as crowd:
        prompts = prompts_of(24)
        answers = answers_of(crowd.ask(prompts))
    assert wrong(answers, controls(server, prompts)) == []
    change.until_ended(48)
    rounds = sum(answer.rounds for answer in answers)
    assert change.of("tandem_rounds_total", drafter="draft_model") == rounds
    counted = by_loop(server, "tandem_round_seconds_count")
    assert set(counted) == {"0", "1"}
    assert all(counted.values())


def test_one_stop_ends_all_requests_with_its_id_in_both_loops(server):
    for _ in range(3):
        request_id = new_forwarded_id()
        sent = entries.inputs("x", **endless())
        with call(server, request_id, *sent) as one, call(server, request_id, *sent) as other:
            next(one)
            next(other)
            with call(server, request_id, entries.tensor(tensors.STOP, True)) as nothing:
                assert list(nothing) == []
            for answers in (one, other):
                with pytest.raises(InferenceServerException, match="cancelled"):
                    list(answers)
    assert eventually(lambda: is_at_rest(server))


def endless():
    return {"max_tokens": ENDLESS, "end_id": -1, "stream": True, "drafter": "none"}


@contextmanager
def call(server, request_id, *inputs):
    """Return the response of `bls_stream` to a request with the given id."""
    with entries.opened(server, request_id) as (send, chunks):
        send(*inputs)
        yield chunks


@pytest.mark.heavy
def test_slots_of_a_dead_loop_become_available_to_the_other(fallible):
    admission = {"max_requests": 2, "max_queue": 0}
    for _ in range(5):
        with fallible(instances=2, admission=admission) as server, Crowd(server, 2) as crowd:
            with server.faults.inject("target", "hold"):
                for number, prompt in enumerate(["x", "y"]):  # in sequence: one request per loop
                    crowd.ask([prompt], timeout=60_000_000)
                    assert eventually(lambda s=server, n=number: running(s) == n + 1)
                assert "overloaded" in ask(server, "z").error
                assert list(by_loop(server, "tandem_requests_running").values()) == [1, 1]
                os.kill(process_of_loop(server, 0), signal.SIGKILL)
                taken = eventually(lambda server=server: is_taken(server))
                lives = server.running  # whether Triton itself survived the kill
                server.kill()  # no process will answer the dead loop's request
            if lives:
                break
    assert taken


def is_taken(server):
    """Return whether a slot is free. If so, the request starts and waits for the paused target."""
    return "exceeded its timeout" in ask(server, "z", timeout=300_000).error


@pytest.mark.heavy
def test_a_server_ends_when_a_loop_dies(tmp_path):
    """Otherwise, Triton would continue and reject half of the requests."""
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        with serving(emulated_zero(folder, instances=2), folder) as server:
            os.kill(process_of_loop(server, 1), signal.SIGKILL)
            server.watch()
            with pytest.raises(TandemError) as given_up:
                server.wait()
        if not any(words in str(given_up.value) for words in TRITONS_OWN_END):
            break
    assert "the process of model 'bls_stream' ended" in str(given_up.value)


def process_of_loop(server, number):
    for pid in server.processes:
        if f"bls_stream_0_{number}" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
    raise AssertionError(f"no process of loop {number}")
