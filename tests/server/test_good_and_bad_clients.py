"""Clients that send invalid requests or read slowly don't affect others (also: `make soak`)."""

import threading

import entries
import pytest
import tritonclient.grpc as client
from crowd import Crowd, answers_of, controls, prompts_of, wrong
from live_triton import eventually
from metrics import idle

pytestmark = pytest.mark.heavy

PROMPTS = prompts_of(32)


@pytest.fixture(scope="module")
def server(fallible):
    with fallible() as running:
        yield running


@pytest.fixture(scope="module")
def expected(server):
    return controls(server, PROMPTS)


def test_invalid_requests_do_not_affect_valid_requests(server, expected):
    with Crowd(server, 64) as crowd:
        good = crowd.ask(PROMPTS)
        bad = [*crowd.ask(["x"] * 64, model="bls", top_p=7.0), *crowd.ask(["x"] * 64, top_p=7.0)]
        assert wrong(answers_of(good), expected) == []
        assert {answer.error for answer in answers_of(bad)} == {
            "input 'top_p' must be between 0 and 1; got 7"
        }


def test_a_client_that_does_not_read_does_not_delay_others(server, expected):
    reads = threading.Event()
    chunks, over = [], threading.Event()

    def take(result, error):
        reads.wait(120)
        assert error is None
        chunks.append(result)
        if result.get_response().parameters["triton_final_response"].bool_param:
            over.set()

    [slow] = controls(server, PROMPTS[:1], max_tokens=450)
    with client.InferenceServerClient(server.grpc_url) as connection, Crowd(server, 16) as crowd:
        connection.start_stream(take)
        wanted = [client.InferRequestedOutput(name) for name in entries.OUTPUTS]
        sent = entries.inputs(PROMPTS[0], max_tokens=450, end_id=-1, stream=True)
        connection.async_stream_infer(
            "bls_stream", sent, outputs=wanted, enable_empty_final_response=True
        )
        for _ in range(3):
            assert wrong(answers_of(crowd.ask(PROMPTS[:16])), expected[:16]) == []
        assert eventually(lambda: idle(server))  # the slow client's decoding has ended too
        assert not chunks
        reads.set()
        assert over.wait(60)
    parts = [part for result in chunks for part in entries.read(result)]
    assert "".join(part.text for part in parts) == slow[1]
