"""Requests that once stopped the watcher, lost a call or an answer: everybody else is served on."""

import resource
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path

import pytest
import small
import tritonclient.grpc as client
from crowd import Crowd, answers_of, ask, idle, metric
from entries import ask_one, inputs, streaming
from live_triton import eventually
from metrics import scrape, total, until
from scale import scaled
from tritonclient.utils import InferenceServerException

from tandem.tools.profiles import deployment
from tandem.tools.profiles.engines.lookup import LookupSection
from tandem.tools.profiles.profile import DecodingSection

from .conftest import serving

END = "<|endoftext|>"
LAST_LOOK = "tandem_watcher_last_look_timestamp_seconds"
ROOM = 32  # as many calls as a model may lose


@pytest.fixture(scope="module")
def server(fallible):
    """A server of models that fail on demand, with room for 32 requests."""
    with fallible(timeouts={"target": 30.0}, admission={"max_requests": ROOM}) as running:
        yield running


@pytest.fixture(scope="module")
def in_engine(fallible_pair, tmp_path_factory):
    """A server of a random target that looks drafts up by itself."""
    folder = tmp_path_factory.mktemp("in-engine")
    profile = deployment.load(small.write_profile(fallible_pair, folder / "p.yaml")).profile
    target = profile.engines.target.model_copy(update={"prompt_lookup": LookupSection()})
    engines = profile.engines.model_copy(update={"target": target, "draft": None})
    entries = tuple(entry for entry in profile.entries if entry.drafter != "none")
    changes = {"engines": engines, "decoding": DecodingSection(), "entries": entries}
    with serving(deployment.check(profile.model_copy(update=changes)), folder) as running:
        yield running


def looks(server):
    """When the watcher of each model last looked."""
    return {
        dict(at)["model"]: value
        for (name, at), value in scrape(server).items()
        if name == LAST_LOOK
    }


def still_looked_after(server):
    """Whether every watcher looks, and does what it is there for."""
    before = looks(server)
    assert set(before) >= {"bls", "bls_stream"}
    until(lambda: all(looks(server)[model] > seen for model, seen in before.items()))
    with streaming(server, "def leave(", max_tokens=400, end_id=-1) as chunks:
        next(chunks)
    return eventually(lambda: idle(server))


def counters(server):
    return {
        key: value
        for key, value in scrape(server).items()
        if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
        and key[0].startswith(("tandem_", "spec_decode_"))
    }


@pytest.mark.parametrize("drafts", ["accepted", "at once"])
def test_an_end_of_sequence_among_an_engines_own_drafts_makes_no_counter_fall(in_engine, drafts):
    before = counters(in_engine)
    prompt = {"accepted": f"a{END}a", "at once": f"{END}{END}a{END}{END}a"}[drafts]
    bias = {"embedding_bias_words": [END], "embedding_bias_weights": [1e9]}
    for entry in ("bls", "bls_stream"):
        stream = {"stream": False} if entry == "bls_stream" else {}
        answer = ask(in_engine, prompt, model=entry, end_id=0, max_tokens=16, **stream, **bias)
        assert (answer.error, answer.ids) == ("", ())
    drafted = "spec_decode_num_draft_tokens_total"
    until(
        lambda: total(in_engine, drafted) > sum(before[key] for key in before if key[0] == drafted)
    )
    assert still_looked_after(in_engine)
    now = counters(in_engine)
    assert [key for key, value in before.items() if now[key] < value] == []


@pytest.mark.heavy
def test_clients_that_leave_during_long_steps_are_no_lost_calls(server):
    """An engine amid a step hears of no `stop`; it is well, and the others wait for it."""
    with Crowd(server, ROOM + 1) as crowd:
        with server.faults.of("target", "hold"):
            leaving = crowd.ask(["x"] * ROOM, drafter="none", timeout=300_000)
            for answer in answers_of(leaving):
                assert "took longer than 0.3 s" in answer.error
            [other] = crowd.ask(["x"], drafter="none")
            assert not wait([other], timeout=4).done
            assert metric(server, "tandem_abandoned_calls") == 0
        [answer] = answers_of([other])
    assert (answer.error, len(answer.ids)) == ("", 24)
    assert eventually(lambda: idle(server))


@pytest.mark.heavy
def test_the_tokenizers_call_of_a_request_that_was_left_is_given_up(fallible):
    with fallible(timeouts={"target": 1.0}) as server:
        with server.faults.of("preprocessing", "hold"):
            assert "took longer than 0.1 s" in ask(server, "x", timeout=100_000).error
            lost = lambda: metric(server, "tandem_abandoned_calls", engine="preprocessing")  # noqa: E731
            assert eventually(lambda: lost() == 1)
        assert eventually(lambda: lost() == 0)  # its thread came back


@contextmanager
def no_more_shared_memory(server, model):
    """Let a model's process take no more shared memory than it has."""
    [pid] = [
        pid
        for pid in server.processes
        if f"/{model}/1/model.py" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


def logits_of(server, entry, prompts):
    """The logits of all prompts in one answer, some MB."""
    values = {"max_tokens": 2, "return_context_logits": True}
    with client.InferenceServerClient(server.grpc_url) as connection:
        return connection.infer(entry, inputs(prompts, **values)).as_numpy("context_logits")


@pytest.mark.heavy
@pytest.mark.parametrize("entry", scaled("bls", "ensemble"))
def test_an_answer_that_does_not_fit_into_shared_memory_ends_its_request(fallible, entry):
    # One prompt after the other: what the target sent is no room for the answer to all of them.
    with fallible(admission={"max_requests": 1}) as server:
        prompts = ["x = 1\n" * 60] * 8
        with no_more_shared_memory(server, "bls_stream"):
            with pytest.raises(InferenceServerException) as refused:
                logits_of(server, entry, prompts)
            assert refused.value.status() == "StatusCode.INTERNAL"
            assert refused.value.message().startswith("the answer cannot be sent: it does not fit")
            assert ask_one(server, entry, "x", max_tokens=4).finish_reason == "length"
            assert still_looked_after(server)
        assert logits_of(server, entry, prompts).nbytes > 2**20
        assert metric(server, "tandem_abandoned_calls") == 0
