"""Hostile clients get an answer or a one-line error, and other clients get correct answers.

For a longer search, with different requests in each run, set HOSTILE_VOLLEYS:

    HOSTILE_VOLLEYS=20000 pytest --timeout 0 -m heavy tests/server/test_hostile.py
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.soak.growth import threads_at_rest
from benchmarks.soak.processes import is_at_rest, sample
from crowd import Crowd, ask, controls, prompts_of
from entries import tensor
from hostile import INNER, REQUESTS, inner_rpcs, raw, raw_strings
from hostile_guides import CRASHING, ENDLESS, ODD, TOO_LONG, large
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from live_triton import eventually
from metrics import total
from scale import first_of
from tritonclient.grpc import InferenceServerClient, InferRequestedOutput
from wire import NO_ANSWER, Post, Rpc, Wire, message, shorten

from .conftest import emulated_zero, serving

VOLLEYS = int(os.environ.get("HOSTILE_VOLLEYS", "0")) or 50
VOLLEY = 8  # concurrent requests

# INTERNAL and UNKNOWN would suggest a retry or a broken server.
RIGHT_CODES = {
    "OK",
    *("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OUT_OF_RANGE"),
    *("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED"),
    *("400", "404", "413", "429", "499", "501", "503", "504"),
}
# Errors of requests that Triton itself rejects before a model receives them. If Triton can't parse
# JSON, its status is INTERNAL. Rejected streams have no code.
TRITONS_OWN = re.compile(
    r"\[request id: |unexpected inference (input|output)|unexpected (shape|size) |attempt to |"
    r"failed to parse the request JSON|Unable to parse|[Uu]nable to find |contents field must not|"
    r"invalid value|invalid model version|failed to get model version|parameter '.*' has invalid|"
    r"[Ee]xpected |Request for unknown model|Unexpected input",
    re.DOTALL,
)
DEADLINE = re.compile("^(INTERNAL: )?deadline_exceeded: ")  # Triton has no code for this error
LINE_AT_MOST = 1_000  # maximum length of an error, in characters

SEARCH = settings(
    derandomize="HOSTILE_VOLLEYS" not in os.environ,
    deadline=None,
    database=None,
    phases=(Phase.generate,),  # each request is checked separately, so shrinking wouldn't help
    suppress_health_check=list(HealthCheck),
)


class Judge:
    """Checks every reply, and reports the errors at the end."""

    def __init__(self, server) -> None:
        self.codes: Counter[str] = Counter()
        self.faults: dict[str, str] = {}
        self._secrets = (
            *("Traceback", ".py", "site-packages", "/dev/shm", server.shm_prefix),
            *(str(server.repository), str(Path.home()), "RuntimeError", "shm_region"),
        )

    def take(self, request: Rpc | Post | str, reply) -> None:
        self.codes[reply.code] += 1
        for wrong in self._wrongs(reply):
            # Report one fault per kind.
            kind = f"{wrong}: {re.sub(r'[0-9]+', 'n', reply.line)[:60]!r}"
            self.faults.setdefault(
                kind, f"{wrong}: {reply.code} {shorten(repr(reply.line), 300)} for {request}"
            )

    def _wrongs(self, reply) -> Iterator[str]:
        own = TRITONS_OWN.match(reply.line)
        if reply.code == NO_ANSWER:
            yield "no answer"
        elif reply.code not in RIGHT_CODES and not own and not DEADLINE.search(reply.line):
            yield "the code"
        if reply.answered:
            return
        if not reply.line.strip():
            yield "no line"
        if "\n" in reply.line.strip() and not own:
            yield "more than one line"
        too_long = len(reply.line) > LINE_AT_MOST and not own
        if too_long or "metadata size exceeds" in reply.line:  # gRPC rejects such a line
            yield "a long line"
        for secret in self._secrets:
            if secret in reply.line:
                yield f"it has {secret!r}"

    def report(self) -> str:
        return "\n".join([f"{len(self.faults)} kinds of fault:", *self.faults.values()])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose engine steps take some time, so that streams last longer."""
    folder = tmp_path_factory.mktemp("attacked")
    planned = emulated_zero(
        folder,
        engine={"max_seq_len": 1024},
        step_ms={"target": 10.0, "draft": 0.5},
        decoding={"draft_len": 4, "draft_ahead": False},
    )
    with serving(planned, folder) as running:
        yield running


@pytest.fixture(scope="module")
def wire(server):
    connections = Wire(server)
    yield connections
    connections.close()


@pytest.fixture
def unharmed(server):
    """After the test, check that the server still works and that no resources leaked."""
    before, processes = sample(server), set(server.processes)
    yield
    assert server.running
    assert eventually(lambda: is_at_rest(server))
    assert total(server, "tandem_abandoned_calls") == 0
    late = ask(server, "x = 1", max_tokens=900, drafter="none", timeout=100_000)
    line = "the request exceeded its timeout of 0.1 s"
    assert late.error == f"deadline_exceeded: {line}"
    assert eventually(lambda: is_at_rest(server))
    assert len(ask(server, "x = 1", max_tokens=8).ids) == 8
    assert set(server.processes) == processes
    assert eventually(
        lambda: all(more.growth <= 24 for more in threads_at_rest(before, sample(server))), 20
    )
    assert max(sample(server).memory_mb.values()) < 1500


def attack(server, wire, requests, volleys: int) -> Judge:
    """Send batches of hostile requests, and return the judge of the replies."""
    judge = Judge(server)

    with ThreadPoolExecutor(VOLLEY) as senders:

        @settings(SEARCH, max_examples=volleys)
        @given(st.lists(requests, min_size=VOLLEY, max_size=VOLLEY))
        def fire(volley):
            assert server.running, judge.report()
            replies = senders.map(wire.send, volley)
            for request, reply in zip(volley, replies, strict=True):
                judge.take(request, reply)

        fire()
    return judge


@contextmanager
def undisturbed(server) -> Iterator[None]:
    """Check that a good client, which sends requests all the time, gets correct answers."""
    prompts = prompts_of(4)
    expected = controls(server, prompts, max_tokens=160)
    over, wrong = threading.Event(), []

    def ask_on():
        while not over.is_set():
            for prompt, said in zip(prompts, expected, strict=True):
                answer = ask(server, prompt, max_tokens=160)
                if answer.said != said:
                    wrong.append(answer)

    with Crowd(server, 1) as crowd:
        asked = crowd.run(ask_on)
        try:
            yield
        finally:
            over.set()
        asked.result()
    assert wrong == []


@pytest.mark.parametrize("volleys", first_of(25, VOLLEYS))
def test_hostile_requests_get_answers_or_one_line_errors(server, wire, unharmed, volleys):
    with undisturbed(server):
        judge = attack(server, wire, REQUESTS, volleys)
    assert not judge.faults, judge.report()
    assert judge.codes.total() == volleys * VOLLEY
    assert judge.codes["OK"] > judge.codes.total() / 20


@pytest.mark.parametrize("model", INNER)
@pytest.mark.parametrize("volleys", first_of(3, 10))
def test_hostile_requests_to_inner_models_get_answers_or_one_line_errors(
    server, wire, unharmed, model, volleys
):
    judge = attack(server, wire, inner_rpcs(model), volleys)
    assert not judge.faults, judge.report()


def test_requested_outputs_that_are_not_computed_are_omitted(server):
    made = [tensor("text_input", "x"), tensor("max_tokens", 4)]
    for name in ("arrival_time_ns", "context_logits", "num_input_tokens"):
        with InferenceServerClient(server.grpc_url) as connection:
            for entry in ("bls", "ensemble"):
                result = connection.infer(entry, made, outputs=[InferRequestedOutput(name)])
                assert not result.get_response().outputs


@pytest.mark.heavy
def test_texts_of_20_megabytes_are_rejected(server, wire, unharmed):
    text = b"lorem ipsum " * (20 * 2**20 // 12)
    judge = Judge(server)
    with undisturbed(server):
        for name in ("text_input", "stop_words", "bad_words", "drafter", "unknown"):
            for request in huge_requests(name, text):
                reply = wire.send(request)
                judge.take(request, reply)
                assert not reply.answered
    assert not judge.faults, judge.report()


def huge_requests(name: str, text: bytes) -> list[Rpc | Post]:
    """Return requests over each protocol with a huge text in the named input."""
    made = strings({"text_input": b"x", name: text}, 4)
    return [
        Rpc(message("bls_stream", made), streamed=True),
        Rpc(message("bls", made), streamed=False),
        Post("/v2/models/bls/generate", b'{"max_tokens": 4, "%s": "%s"}' % (name.encode(), text)),
    ]


def strings(given: dict[str, bytes], max_tokens: int) -> list:
    """Return the tensors of a request: string inputs, and `max_tokens`."""
    made = [(n, "BYTES", [1, 1], raw_strings([value])) for n, value in given.items()]
    return [*made, ("max_tokens", "INT32", [1, 1], raw("INT32", [max_tokens]))]


@pytest.mark.heavy
def test_hostile_guides_get_answers_or_one_line_errors(server, wire, unharmed):
    judge = Judge(server)
    rejected = {"too long": TOO_LONG, **CRASHING}
    guides = {**ODD, **rejected}

    def send(name):
        kind, text = (part.encode(errors="surrogateescape") for part in guides[name])
        given = {"guided_decoding_guide_type": kind, "guided_decoding_guide": text}
        made, streamed = strings(given | {"text_input": b"x"}, 12), len(name) % 2 == 0
        return wire.send(Rpc(message("bls_stream" if streamed else "bls", made), streamed))

    with undisturbed(server), ThreadPoolExecutor(4) as senders:
        for name, reply in zip(guides, senders.map(send, guides), strict=True):
            judge.take(name, reply)
            assert not (reply.answered and name in rejected)
    assert not judge.faults, judge.report()


@pytest.mark.heavy
def test_many_large_guides_are_compiled_and_none_is_rejected(server, unharmed):
    """Every fourth client leaves immediately. The server rejects no request as too busy."""
    clients = 32
    with undisturbed(server), ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(ask_by_guide, server, large(n), n % 4 == 3) for n in range(clients)]
        answers = [future.result() for future in asked]
    assert [a.error for n, a in enumerate(answers) if n % 4 != 3 and a.error] == []


@pytest.mark.heavy
def test_a_small_guide_is_answered_while_others_compile_for_seconds(server, unharmed):
    with ThreadPoolExecutor(2) as pool:
        heavy = [pool.submit(ask_by_guide, server, guide, False) for guide in ENDLESS.values()]
        assert ask_by_guide(server, ("regex", "[a-z]+ small"), False).error == ""
        assert not all(asked.done() for asked in heavy)
    assert all(asked.result().error for asked in heavy)


def ask_by_guide(server, guide, leaves):
    kind, text = guide
    asked = {"guided_decoding_guide_type": kind, "guided_decoding_guide": text, "max_tokens": 4}
    return ask(server, "x", timeout=10_000 if leaves else None, **asked)
