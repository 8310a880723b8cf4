"""A remote engine chooses, checks and replaces its replicas."""

import queue
import socket
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from benchmarks.proxy import Proxy
from live_triton import eventually
from remote_replicas import FACTS, Replica
from tritonclient.grpc import service_pb2_grpc

from tandem.contract import engine as tensors
from tandem.engines.engine import ForwardedCall
from tandem.engines.errors import LoadError
from tandem.engines.remote.engine import RemoteEngine
from tandem.engines.remote.settings import RemoteSettings

IDS = {tensors.INPUT_IDS: np.array([[1, 2, 3]], np.int32)}


@pytest.fixture
def stack():
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def start(stack):
    """A function that starts a replica."""

    def started(**given):
        replica = Replica(**given)
        stack.callback(replica.server.stop, 0)
        return replica

    return started


@pytest.fixture
def connect(stack):
    """A function that connects to urls."""

    def connected(*urls, **given):
        engine = RemoteEngine(RemoteSettings(url=urls, model="m", expected=FACTS, **given))
        stack.callback(engine.close)
        return engine

    return connected


def call(engine, request_id="s-1", timeout=20.0):
    """Return the tokens of a call, or its error's code and line."""
    answers = queue.Queue()
    fail = lambda line, code, field: answers.put((code, line))  # noqa: E731
    engine.forward(ForwardedCall(IDS, [tensors.OUTPUT_IDS], request_id, timeout, answers.put, fail))
    answer = answers.get(timeout=30)
    return answer if isinstance(answer, tuple) else answer[tensors.OUTPUT_IDS].tolist()


def gets_new_sequences(engine, replica):
    """Return whether a replica gets one of the next two new sequences."""
    ids = [uuid.uuid4().hex for _ in range(2)]
    for name in ids:
        call(engine, f"{name}-1")
    return any(name in replica.ids for name in [f"{one}-1" for one in ids])


def test_a_sequence_stays_on_one_replica_and_new_ones_go_to_the_other(start, connect):
    first, second = start(), start()
    engine = connect(first.url, second.url)
    for number in range(6):
        for sequence in "abcd":
            assert call(engine, f"{sequence}-{number}") == [[[7]]]
    sequences = [{name[0] for name in replica.ids} for replica in (first, second)]
    assert sequences == [{"a", "c"}, {"b", "d"}]


@pytest.mark.parametrize("dies", [False, True])
def test_the_calls_of_a_failed_replica_go_to_another_one_until_it_is_back(start, connect, dies):
    first, second = start(), start()
    engine = connect(first.url, second.url)
    call(engine, "a-1")
    if dies:
        first.server.stop(0).wait()
    else:
        first.code, first.line = (
            grpc.StatusCode.INTERNAL,
            "UNAVAILABLE: the engine is shutting down",
        )
    assert call(engine, "a-2") == [[[7]]]
    assert second.ids == ["a-2"]
    again = start(port=first.port) if dies else first
    again.code = None
    assert eventually(lambda: gets_new_sequences(engine, again), 20)


def test_without_a_replica_calls_fail_at_once_with_the_host_and_the_reason(start, connect):
    replica = start()
    engine = connect(replica.url)
    replica.server.stop(0).wait()
    for _ in range(2):
        code, line = call(engine)
        assert code == "UNAVAILABLE"
        assert line.startswith(f"{replica.url}: ")
        assert "\n" not in line
    start(port=replica.port)
    assert eventually(lambda: call(engine) == [[[7]]], 20)


def test_an_engine_that_is_not_reachable_yet_does_not_prevent_the_start(start, connect):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    engine = connect(f"localhost:{port}")
    assert call(engine)[0] == "UNAVAILABLE"
    start(port=port)
    assert eventually(lambda: call(engine) == [[[7]]], 20)


def test_a_rejected_call_keeps_its_code_and_is_not_repeated(start, connect):
    first, second = start(), start()
    engine = connect(first.url, second.url)
    first.code, first.line = grpc.StatusCode.INVALID_ARGUMENT, "[request id: a-1] end_id is wrong"
    assert call(engine, "a-1") == ("INVALID_ARG", f"{first.url}: end_id is wrong")
    assert second.ids == []
    first.code, first.line = grpc.StatusCode.INTERNAL, "UNSUPPORTED: no min_p"
    assert call(engine, "a-2") == ("UNSUPPORTED", f"{first.url}: no min_p")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"facts": FACTS.replace("64", "32")}, "has max_seq_len 32, but this repository"),
        ({"facts": FACTS + " "}, "is from another version"),
        ({"facts": ""}, "isn't one of Tandem's engines"),
        ({"inputs": tensors.NVIDIA_INPUTS}, "lacks the input branch_counts"),
    ],
)
def test_a_different_model_or_version_is_rejected_at_the_start(start, connect, change, message):
    replica = start()
    vars(replica).update(change)
    with pytest.raises(LoadError, match=message) as caught:
        connect(replica.url)
    assert replica.url in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_different_model_gets_no_calls_later_either(start, connect):
    first, second = start(), start()
    engine = connect(first.url, second.url)
    first.server.stop(0).wait()
    call(engine, "a-1")
    call(engine, "b-1")
    other = start(port=first.port)
    other.facts = FACTS.replace("64", "32")
    assert not eventually(lambda: gets_new_sequences(engine, other), 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (1, 2**40)},
        {"shape": (-1, 0)},
        {"datatype": "BYTES"},
        {"datatype": "FP7"},
        {"logits": np.zeros((1, 1, 1, 9), np.float32)},
        {"logits": np.zeros((1, 1, 1, 10))},
        {"logits": np.float32(0)},
    ],
)
def test_a_response_that_cannot_be_read_fails_only_its_call(start, connect, wrong):
    replica = start()
    engine = connect(replica.url)
    vars(replica).update(wrong)
    code, line = call(engine)
    assert code == "INTERNAL"
    assert line.startswith(f"{replica.url}: its response can't be read: ")
    assert "\n" not in line
    vars(replica).update(shape=(1, 1, 1), datatype="INT32", logits=np.zeros((1, 10), np.float32))
    assert call(engine) == [[[7]]]


def test_a_stop_goes_to_the_replica_of_the_call(start, connect):
    first, second = start(), start()
    engine = connect(first.url, second.url)
    engine.stop("unknown")
    first.stopped.clear()  # the call waits for the stop
    answers = queue.Queue()
    engine.forward(ForwardedCall(IDS, [tensors.OUTPUT_IDS], "a-1", 20.0, answers.put, pytest.fail))
    assert eventually(lambda: first.ids)
    engine.stop("a-1")
    assert answers.get(timeout=30)
    assert (first.stops, second.stops) == (["a-1"], [])


def test_an_overdue_call_fails_alone_with_the_host_and_its_timeout(start, connect):
    replica = start()
    engine = connect(replica.url)
    replica.stopped.clear()
    assert call(engine, "a-1", timeout=0.5) == (
        "INTERNAL",
        f"{replica.url} didn't answer within 0.5 s",
    )
    replica.stopped.set()
    assert call(engine, "b-1") == [[[7]]]


def test_a_stalled_connection_costs_one_timeout_and_then_calls_go_elsewhere(start, connect, stack):
    first, second = start(), start()
    proxy = stack.enter_context(Proxy(first.url))
    engine = connect(proxy.url, second.url)
    call(engine, "a-1")
    proxy.stall()
    began = time.monotonic()
    assert call(engine, "a-2", timeout=0.5) == (
        "INTERNAL",
        f"{proxy.url} didn't answer within 0.5 s",
    )
    assert time.monotonic() - began < 2
    for number in range(4):  # also before the replica is known to be down
        assert call(engine, f"new{number}-1", timeout=0.5) == [[[7]]]
    assert eventually(lambda: call(engine, "a-3", timeout=0.5) == [[[7]]], 10)
    proxy.flow()
    assert eventually(lambda: gets_new_sequences(engine, first), 20)


def test_a_dropped_connection_loses_no_call(start, connect, stack):
    first, second = start(), start()
    proxy = stack.enter_context(Proxy(first.url))
    engine = connect(proxy.url, second.url)
    call(engine, "a-1")
    proxy.cut()  # while no call runs
    assert call(engine, "a-2") == [[[7]]]
    assert eventually(lambda: gets_new_sequences(engine, first), 20)
    first.stopped.clear()
    answers = queue.Queue()
    ids = [f"{name}-1" for name in "bc"]  # one for each replica
    for name in ids:
        engine.forward(
            ForwardedCall(IDS, [tensors.OUTPUT_IDS], name, 20.0, answers.put, pytest.fail)
        )
    assert eventually(lambda: {*ids} & {*first.ids})
    proxy.cut()
    for _ in ids:
        assert answers.get(timeout=10)
    first.stopped.set()


def test_all_addresses_of_a_name_are_replicas(start, connect, monkeypatch):
    replica = start()
    found = [(socket.AF_INET, 0, 0, "", ("127.0.0.1", replica.port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: list(found))
    engine = connect(f"pool:{replica.port}")
    other = Replica.__new__(Replica)
    assert call(engine) == [[[7]]]
    # A new address is used after a while.
    server = grpc.server(ThreadPoolExecutor(8))
    vars(other).update(vars(replica), ids=[], stops=[], metadata={})
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(other, server)
    server.add_insecure_port(f"127.0.0.2:{replica.port}")
    server.start()
    found.append((socket.AF_INET, 0, 0, "", ("127.0.0.2", replica.port)))
    assert eventually(lambda: gets_new_sequences(engine, other), 20)
    server.stop(0)


def test_tls_and_a_token_protect_the_calls(start, connect, tmp_path):
    key, certificate, token = (tmp_path / name for name in ("key.pem", "cert.pem", "token"))
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    pair = [(key.read_bytes(), certificate.read_bytes())]
    replica = start(credentials=grpc.ssl_server_credentials(pair))
    token.write_text("secret\n")
    engine = connect(replica.url, tls=True, ca_file=str(certificate), token_file=str(token))
    assert call(engine) == [[[7]]]
    assert replica.metadata["authorization"] == "Bearer secret"
    token.write_text("renewed")
    call(engine)
    assert replica.metadata["authorization"] == "Bearer renewed"
    assert call(connect(replica.url, tls=True))[0] == "UNAVAILABLE"  # an unknown authority
