"""A loop whose engines are models of other servers, which fail and come back."""

import queue
import statistics
import threading
import time
from contextlib import closing
from dataclasses import asdict

import numpy as np
import pytest
import yaml
from benchmarks import faulty
from benchmarks.soak.processes import is_at_rest
from crowd import Crowd, answers_of, ask, controls, prompts_of, wrong
from entries import ask_one, rejection, streaming
from live_triton import KilledServer, eventually, lasting_ports
from metrics import computed, computed_so_far, total
from paths import ROOT

from tandem.contract import engine as tensors
from tandem.engines.engine import ForwardedCall
from tandem.engines.remote.engine import RemoteEngine
from tandem.engines.remote.replica import Replica, resolve
from tandem.engines.remote.settings import RemoteModel, RemoteSettings
from tandem.tools.profiles import deployment
from tandem.tools.triton import repository
from tandem.tools.triton.server import Ports

PROMPTS = prompts_of(8)
LONG = 120
TOKENIZER = str(ROOT / "tandem" / "demo" / "tokenizer")
STEP_MS = {"target": 5.0, "draft": 0.5}
CALLS = "tandem_engine_remote_calls_total"
TIMEOUTS = {"target": 4.0, "draft": 1.0, "drafter_pause": 0.3}


def serve(profile, folder):
    """Return a server that isn't started yet, and that has the same ports after each start."""
    models, file = folder / "repository", folder / "profile.yaml"
    file.write_text(yaml.safe_dump(profile))
    planned = deployment.load(file)
    repository.render(planned, models, link=True)
    server = KilledServer(
        models, thread_pool_size=planned.thread_pool_size, ports=Ports(*lasting_ports(3))
    )
    if planned.profile.engines.target.kind != "remote":
        faulty.plant(models)
        server.faults = faulty.Faults(models)
    return server


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """Two servers with the same engines."""
    emulated = {"kind": "emulated", "tokenizer": TOKENIZER, "language": {"alpha": 0.8}}
    engines = {role: {**emulated, "step_ms": ms} for role, ms in STEP_MS.items()}
    profile = {"name": "replica", "engines": engines}
    servers = [serve(profile, tmp_path_factory.mktemp("replica")) for _ in range(2)]
    with servers[0] as first, servers[1] as second:
        yield first, second


@pytest.fixture(scope="module")
def server(replicas, tmp_path_factory):
    """A loop with targets on both replicas and the draft on the second one."""
    urls = [replica.grpc_url for replica in replicas]
    profile = {
        "name": "loop",
        "engines": {
            "target": {"kind": "remote", "url": urls, "tokenizer": TOKENIZER},
            "draft": {"kind": "remote", "url": urls[1], "model": "draft"},
        },
        "decoding": {"drafter": "draft_model", "draft_len": 4},
        "timeouts": TIMEOUTS,
    }
    with serve(profile, tmp_path_factory.mktemp("loop")) as running:
        yield running


@pytest.fixture(scope="module")
def long_answers(replicas):
    return controls(replicas[0], PROMPTS, max_tokens=LONG)


@pytest.fixture
def healthy(server):
    """The server, which is idle and has all its engines again after the test."""
    yield server
    assert eventually(lambda: is_at_rest(server) and drafts(server))


def drafts(server):
    return ask(server, "x = 1", max_tokens=8).draft_tokens > 0


def calls(server, replica, model="target", outcome="ok"):
    return total(server, CALLS, model=model, replica=replica.grpc_url, outcome=outcome)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 1.0, "seed": 3},
        {"temperature": 1.0, "seed": 3, "use_draft_logits": True},
        {"draft_ahead": "true"},
        {"return_log_probs": True, "num_draft_tokens": 1},
        {"stop_words": ["e"], "min_tokens": 9},
        {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "[a-z ]{30}"},
    ],
    ids="-".join,
)
def test_output_is_the_same_as_with_local_engines(healthy, replicas, values):
    asked = {"max_tokens": 40, **values}
    expected, answer = (ask_one(s, "bls", "def f(", **asked) for s in (replicas[0], healthy))
    assert answer.said == expected.said
    assert answer.draft_tokens > 0


def test_new_sequences_go_to_all_replicas_and_compute_nothing_twice(healthy, replicas):
    before = [computed_so_far(replica) for replica in replicas]
    sent = [calls(healthy, replica) for replica in replicas]
    with Crowd(healthy, 8) as crowd:
        answers = answers_of(crowd.ask(PROMPTS, max_tokens=LONG))
    assert eventually(
        lambda: all(calls(healthy, r) > n for r, n in zip(replicas, sent, strict=True))
    )
    spent = sum(computed_so_far(r) - n for r, n in zip(replicas, before, strict=True))
    # Each sequence computes its prompt once, and each round its draft and one more token.
    needed = sum(2 * LONG + answer.draft_tokens for answer in answers) + sum(map(len, PROMPTS))
    assert spent <= needed


def test_engines_stop_when_the_client_leaves(healthy, replicas):
    before = sum(computed(replica) for replica in replicas)
    with streaming(healthy, "def leave(", max_tokens=3600, end_id=-1) as chunks:
        next(chunks)
    # `computed` waits until the engine computes nothing more.
    assert sum(computed(replica) for replica in replicas) - before < 1800


def test_a_stop_frees_the_remote_engine_within_50_ms(replicas):
    model = RemoteModel(url=(replicas[0].grpc_url,), model="target")
    with (
        closing(Replica(model, *next(resolve(model))).client) as client,
        closing(RemoteEngine(RemoteSettings(**asdict(model), expected=facts_of(client)))) as engine,
    ):
        assert statistics.median(seconds_to_stop(engine, f"s-{n}") for n in range(9)) < 0.05


def facts_of(client):
    return client.get_model_config("target").config.parameters["facts"].string_value


def seconds_to_stop(engine, request_id):
    """Return the seconds from a `stop` to the end of a call that would take 2.5 s."""
    inputs = {
        tensors.INPUT_IDS: np.array([[400, 401, 402]], np.int32),
        tensors.INPUT_LENGTHS: np.array([[3]], np.int32),
        tensors.REQUEST_OUTPUT_LEN: np.array([[500]], np.int32),
    }
    ended = queue.Queue()
    outputs, fail = [tensors.OUTPUT_IDS], lambda *_: ended.put(None)
    engine.forward(ForwardedCall(inputs, outputs, request_id, 20.0, ended.put, fail))
    threading.Event().wait(0.1)
    began = time.perf_counter()
    engine.stop(request_id)
    ended.get(timeout=10)
    return time.perf_counter() - began


def test_nothing_is_lost_if_a_replica_is_killed_and_it_is_used_again_later(
    healthy, replicas, long_answers
):
    with Crowd(healthy, 8) as crowd:
        streams = crowd.ask(PROMPTS, max_tokens=LONG)
        crowd.wait_until_all_talk()
        replicas[1].kill()
        assert wrong(answers_of(streams), long_answers) == []
        assert wrong(answers_of(crowd.ask(PROMPTS, max_tokens=LONG)), long_answers) == []
        replicas[1].start()
        assert eventually(lambda: drafts(healthy))
        before = calls(healthy, replicas[1])
        used = lambda: calls(healthy, replicas[1]) > before  # noqa: E731
        while not used():  # new sequences, until one of them goes to the replica
            assert wrong(answers_of(crowd.ask(PROMPTS, max_tokens=LONG)), long_answers) == []


def test_a_hanging_draft_costs_only_speed(healthy, replicas, long_answers):
    with Crowd(healthy, 8) as crowd:
        streams = crowd.ask(PROMPTS, max_tokens=LONG, draft_ahead="true")
        crowd.wait_until_all_talk()
        with replicas[1].faults.inject("draft", "hold"):
            assert wrong(answers_of(streams), long_answers) == []


def test_a_hanging_target_ends_the_request_with_a_line_that_names_the_host(healthy, replicas):
    with (
        replicas[0].faults.inject("target", "hold"),
        replicas[1].faults.inject("target", "hold"),
    ):
        error = ask(healthy, "x = 1", max_tokens=8).error
    assert "\n" not in error
    assert any(f"{replica.grpc_url} didn't answer within 4 s" in error for replica in replicas)
    assert eventually(lambda: not ask(healthy, "x = 1", max_tokens=8).error)


def test_an_invalid_call_is_rejected_with_the_engines_reason(healthy):
    error = rejection(healthy, "bls", "x", bad_words=["a"], lora_name="none", max_tokens=2)
    assert "lora" in error
