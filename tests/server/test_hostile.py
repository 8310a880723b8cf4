"""A client that means harm: it gets an answer or one line, and nobody else notices it.

Set HOSTILE_VOLLEYS to search longer, with other requests each time:

    HOSTILE_VOLLEYS=20000 pytest --timeout 0 -m heavy tests/server/test_hostile.py
"""

from __future__ import annotations

import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from bystander import standing_by
from crowd import ask, idle, metric
from entries import tensor
from hostile import INNER, REQUESTS, inner_rpcs, raw, raw_strings
from hostile_guides import CRASHING, ENDLESS, ODD, TOO_LONG, large
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from live_triton import eventually
from scale import scaled
from tritonclient.grpc import InferenceServerClient, InferRequestedOutput
from wire import NO_ANSWER, Post, Rpc, Wire, message, shortened

from tandem.guides import worker
from tandem.tools.profiles import deployment

from .conftest import serving

PROFILE = Path(__file__).resolve().parents[2] / "profiles" / "emulated-zero.yaml"
VOLLEYS = scaled(60, int(os.environ.get("HOSTILE_VOLLEYS", "0")) or 650)
VOLLEY = 8  # requests at once

# What a request may be refused with. Not INTERNAL or UNKNOWN, which ask the caller to try again, or
# tell him that the server is broken; and in a stream not a line without a code.
RIGHT_CODES = {
    "OK",
    *("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OUT_OF_RANGE"),
    *("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED"),
    *("400", "404", "413", "429", "499", "501", "503", "504"),
}
# Refused by Triton itself, before any model sees the request; its codes and words are not ours. Its
# JSON endpoints say INTERNAL for what they cannot parse, and a stream that it refuses has no code.
TRITONS_OWN = re.compile(
    r"\[request id: |unexpected inference (input|output)|unexpected (shape|size) |attempt to |"
    r"failed to parse the request JSON|Unable to parse|[Uu]nable to find |contents field must not|"
    r"invalid value|invalid model version|failed to get model version|parameter '.*' has invalid|"
    r"[Ee]xpected |Request for unknown model|Unexpected input",
    re.DOTALL,
)
DEADLINE = re.compile("^(INTERNAL: )?deadline_exceeded: ")  # Triton has no code for it
LINE_AT_MOST = 1_000  # characters
# A busy machine makes a good client's stream pause now and then, and its twin's at other moments:
# of 5,200 requests one pause was of 0.5 or 0.6 s on either server. A kind of request that stops
# others does so each time.
MOST_PAUSES_AT_MOST = 0.5  # seconds
ONE_LONGER_IN = 1000  # requests
# Beside work that keeps cores busy: guides that compute for seconds, texts of 20 MB that Triton
# reads before any model does. Who held Python's lock for them would keep it for much longer.
PAUSE_BESIDE_WORK = 2.0
# An answer is there within a second. The machine may be busy with other things: what takes longer
# than it could for any other reason is a fault, and so is one in a hundred over a second and what
# the machine took meanwhile from a server that nobody attacked.
SECONDS_AT_MOST = 10.0
SECONDS_OF_MOST = 1.0
# Of a guide, which is tried out at a low priority, and compiled after that.
SECONDS_OF_GUIDE = 2 * worker.SECONDS + SECONDS_AT_MOST

SEARCH = settings(
    derandomize="HOSTILE_VOLLEYS" not in os.environ,
    deadline=None,
    database=None,
    phases=(Phase.generate,),  # each request is judged by itself: there is nothing to shrink
    suppress_health_check=list(HealthCheck),
)


class Judge:
    """Looks at every reply; says at the end what was wrong."""

    def __init__(self, server, seconds_at_most: float = SECONDS_AT_MOST) -> None:
        self.server = server
        self._seconds_at_most = seconds_at_most
        self.times: list[tuple[float, float]] = []  # of each reply: when asked for, when there
        self.codes: Counter[str] = Counter()
        self.faults: dict[str, str] = {}
        self._secrets = (
            *("Traceback", ".py", "site-packages", "/dev/shm", server.shm_prefix),
            *(str(server.repository), str(Path.home()), "RuntimeError", "shm_region"),
        )

    def take(self, request: Rpc | Post, reply) -> None:
        self.times.append((reply.began, reply.began + reply.seconds))
        self.codes[reply.code] += 1
        for wrong in self._wrongs(reply):
            # One of each kind is enough to tell.
            kind = f"{wrong}: {re.sub(r'[0-9]+', 'n', reply.line)[:60]!r}"
            self.faults.setdefault(
                kind, f"{wrong}: {reply.code} {shortened(repr(reply.line), 300)} for {request}"
            )

    def _wrongs(self, reply):
        own = TRITONS_OWN.match(reply.line)
        if reply.code == NO_ANSWER:
            yield "no answer"
        elif reply.code not in RIGHT_CODES and not own and not DEADLINE.search(reply.line):
            yield "the code"
        if reply.seconds > self._seconds_at_most:
            yield f"it took {reply.seconds:.1f} s"
        if reply.answered:
            return
        if not reply.line.strip():
            yield "no line"
        if "\n" in reply.line.strip() and not own:
            yield "more than one line"
        too_long = len(reply.line) > LINE_AT_MOST and not own
        if too_long or "metadata size exceeds" in reply.line:  # gRPC itself refuses such a line
            yield "a long line"
        for secret in self._secrets:
            if secret in reply.line:
                yield f"it tells of {secret!r}"

    def report(self) -> str:
        return "\n".join([f"{len(self.faults)} kinds of fault:", *self.faults.values()])

    def slow(self, spared) -> list[float]:
        """The seconds of replies that took longer than they should, and than the machine made."""
        return [
            round(end - begin, 2)
            for begin, end in self.times
            if end - begin > SECONDS_OF_MOST + spared.paused_in_all(begin, end)
        ]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Engines whose steps take a moment, so that a stream lasts."""
    profile = yaml.safe_load(PROFILE.read_text())
    for name, engine in profile["engines"].items():
        tokenizer = PROFILE.parent / engine["tokenizer"]
        engine |= {"tokenizer": str(tokenizer), "max_seq_len": 1024}
        engine["step_ms"] = {"target": 10.0, "draft": 0.5}[name]
    profile["decoding"]["draft_len"] = 4
    file = tmp_path_factory.mktemp("profile") / "hostile.yaml"
    file.write_text(yaml.safe_dump(profile))
    return deployment.load(file)


@pytest.fixture(scope="module")
def server(planned, tmp_path_factory):
    with serving(planned, tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest.fixture(scope="module")
def twin(planned, tmp_path_factory):
    """The same server, left alone: its pauses are the machine's."""
    with serving(planned, tmp_path_factory.mktemp("twin")) as running:
        yield running


@pytest.fixture(scope="module")
def wire(server):
    connections = Wire(server)
    yield connections
    connections.close()


@pytest.fixture
def unharmed(server):
    """What holds of the server after all that was sent."""
    before = {pid: threads_of(pid) for pid in server.processes}
    yield
    assert server.running
    assert eventually(lambda: idle(server))
    assert metric(server, "tandem_abandoned_calls") == 0
    late = ask(server, "x = 1", max_tokens=900, drafter="none", timeout=100_000)
    # it watches
    line = "the request took longer than 0.1 s, which is its time-out"
    assert late.error == f"deadline_exceeded: {line}"
    assert eventually(lambda: idle(server))
    assert len(ask(server, "x = 1", max_tokens=8).ids) == 8
    assert set(server.processes) == set(before)
    spare = 24
    assert eventually(lambda: all(threads_of(p) <= before[p] + spare for p in before), 20)
    for pid in before:
        assert resident_mb(pid) < 1500


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024


def attack(server, wire, requests, volleys: int) -> Judge:
    """Send volley after volley."""
    judge = Judge(server)
    volley_of = st.lists(requests, min_size=VOLLEY, max_size=VOLLEY)

    with ThreadPoolExecutor(VOLLEY) as senders:

        @settings(SEARCH, max_examples=volleys)
        @given(volley_of)
        def fire(volley):
            assert server.running, judge.report()
            replies = senders.map(wire.send, volley)
            for request, reply in zip(volley, replies, strict=True):
                judge.take(request, reply)

        fire()
    return judge


@pytest.mark.parametrize("volleys", VOLLEYS)
def test_whatever_is_sent_gets_an_answer_or_a_line_and_nobody_else_notices(
    server, twin, wire, unharmed, volleys
):
    with standing_by(server.grpc_url) as good, standing_by(twin.grpc_url) as spared:
        judge = attack(server, wire, REQUESTS, volleys)
    assert not judge.faults, judge.report()
    assert len(judge.times) == volleys * VOLLEY
    assert judge.codes["OK"] > len(judge.times) / 20
    slow = judge.slow(spared.fare)
    assert len(slow) < len(judge.times) / 100, slow
    assert good.fare.wrong == []
    assert good.fare.answers > 0
    assert good.fare.unexcused(PAUSE_BESIDE_WORK, spared.fare) == []
    longer = good.fare.unexcused(MOST_PAUSES_AT_MOST, spared.fare)
    assert len(longer) <= 1 + len(judge.times) / ONE_LONGER_IN, longer


@pytest.mark.parametrize("model", INNER)
@pytest.mark.parametrize("volleys", scaled(8, 40))
def test_whatever_is_sent_to_a_model_behind_the_entries_gets_an_answer_or_a_line(
    server, wire, unharmed, model, volleys
):
    judge = attack(server, wire, inner_rpcs(model), volleys)
    assert not judge.faults, judge.report()


def test_who_asks_only_for_what_is_not_made_gets_an_answer_without_outputs(server):
    made = [tensor("text_input", "x"), tensor("max_tokens", 4)]
    for name in ("arrival_time_ns", "context_logits", "num_input_tokens"):
        with InferenceServerClient(server.grpc_url) as connection:
            for entry in ("bls", "ensemble"):
                result = connection.infer(entry, made, outputs=[InferRequestedOutput(name)])
                assert not result.get_response().outputs


HUGE = 20 * 2**20


@pytest.mark.heavy
def test_twenty_megabytes_are_refused_at_once(server, twin, wire, unharmed):
    text = b"lorem ipsum " * (HUGE // 12)
    judge = Judge(server)
    with standing_by(server.grpc_url) as good, standing_by(twin.grpc_url) as spared:
        for name in ("text_input", "stop_words", "bad_words", "drafter", "unknown"):
            for request in huge_requests(name, text):
                reply = wire.send(request)
                judge.take(request, reply)
                assert not reply.answered
    assert not judge.faults, judge.report()
    assert good.fare.wrong == []
    assert good.fare.unexcused(PAUSE_BESIDE_WORK, spared.fare) == []


def huge_requests(name: str, text: bytes) -> list[Rpc | Post]:
    """A request of each kind with a huge text in the input of that name."""
    given = {"text_input": b"x", name: text}
    made = [(n, "BYTES", [1, 1], raw_strings([value])) for n, value in given.items()]
    made.append(("max_tokens", "INT32", [1, 1], raw("INT32", [4])))
    return [
        Rpc(message("bls_stream", made), streamed=True),
        Rpc(message("bls", made), streamed=False),
        Post("/v2/models/bls/generate", b'{"max_tokens": 4, "%s": "%s"}' % (name.encode(), text)),
    ]


def by_guide(guide: tuple[str, str], *, streamed: bool) -> Rpc:
    """A request for an answer by a guide, whatever bytes it is of."""
    kind, text = (part.encode(errors="surrogateescape") for part in guide)
    given = {"guided_decoding_guide_type": kind, "guided_decoding_guide": text, "text_input": b"x"}
    made = [(n, "BYTES", [1, 1], raw_strings([value])) for n, value in given.items()]
    made.append(("max_tokens", "INT32", [1, 1], raw("INT32", [12])))
    return Rpc(message("bls_stream" if streamed else "bls", made), streamed=streamed)


@pytest.mark.heavy
def test_hostile_guides_get_an_answer_or_a_line(server, twin, wire, unharmed):
    judge = Judge(server, SECONDS_OF_GUIDE)
    refused = {"too long": TOO_LONG, **CRASHING, "endless": ENDLESS["intersections"]}
    with standing_by(server.grpc_url) as good, standing_by(twin.grpc_url) as spared:
        for name, guide in {**ODD, **refused}.items():
            reply = wire.send(by_guide(guide, streamed=len(name) % 2 == 0))
            judge.take(name, reply)
            assert not (reply.answered and name in refused)
    assert not judge.faults, judge.report()
    assert good.fare.wrong == []
    assert good.fare.unexcused(PAUSE_BESIDE_WORK, spared.fare) == []


@pytest.mark.heavy
@pytest.mark.parametrize("clients", scaled(16, 64))
def test_many_large_guides_wait_their_turn(server, twin, wire, unharmed, clients):
    """Every fourth client leaves at once; nobody is told that the server is busy."""
    with (
        standing_by(server.grpc_url) as good,
        standing_by(twin.grpc_url) as spared,
        ThreadPoolExecutor(clients) as pool,
    ):
        left = [pool.submit(ask_by_guide, server, large(n), n % 4 == 3) for n in range(clients)]
        answers = [future.result() for future in left]
    stayed = [answer for n, answer in enumerate(answers) if n % 4 != 3]
    assert [answer.error for answer in stayed if answer.error] == []
    assert good.fare.wrong == []
    assert good.fare.unexcused(PAUSE_BESIDE_WORK, spared.fare) == []


def test_a_small_guide_is_answered_while_others_compile_for_seconds(server, unharmed):
    with ThreadPoolExecutor(2) as pool:
        heavy = [pool.submit(ask_by_guide, server, guide, False) for guide in ENDLESS.values()]
        assert ask_by_guide(server, ("regex", "[a-z]+ small"), False).error == ""
        assert not all(asked.done() for asked in heavy)
    assert all("invalid_guide" in asked.result().error for asked in heavy)


def ask_by_guide(server, guide, leaves):
    kind, text = guide
    asked = {"guided_decoding_guide_type": kind, "guided_decoding_guide": text, "max_tokens": 4}
    return ask(server, "x", timeout=10_000 if leaves else None, **asked)
