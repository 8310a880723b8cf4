"""Requests that are too much, and a tokenizer that hangs: others do not notice."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as client
from crowd import Crowd as Clients
from crowd import answers_of, ask, controls, idle, metric, streaming
from entries import ask_one, inputs, read, refusal, tensor
from live_triton import eventually, memory_bytes

from tandem.contract.errors import decoded

from .conftest import emulated_zero, serving_fallibly

STREAMS = [f"def number_{n}(" for n in range(8)]
LENGTH = 400
HUGE = b"x" * (50 << 20)
CALLS = 4  # of the tokenizer, at once
QUEUE = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Emulated engines that answer at once, and tokenizers that hang on demand."""
    folder = tmp_path_factory.mktemp("door")
    admission = {"max_requests": 8, "max_queue": QUEUE}
    planned = emulated_zero(folder, admission=admission, timeouts={"target": 60.0})
    with serving_fallibly(planned, folder) as running:
        yield running


@pytest.fixture(autouse=True)
def left_as_found(server):
    yield
    server.faults.end("preprocessing")
    assert eventually(lambda: idle(server))
    assert ask_one(server, "bls", "x", max_tokens=2).finish_reason == "length"


def line_of(server, made, model="bls"):
    """The line that a request gets which must fail."""
    with (
        client.InferenceServerClient(server.grpc_url) as connection,
        pytest.raises(client.InferenceServerException) as refused,
    ):
        connection.infer(model, made, client_timeout=60)
    return refused.value.message()


def tokenizer_inputs(text):
    query = client.InferInput("QUERY", [1, 1], "BYTES")
    query.set_data_from_numpy(np.array([[text]], object))
    length = client.InferInput("REQUEST_OUTPUT_LEN", [1, 1], "INT32")
    length.set_data_from_numpy(np.array([[4]], np.int32))
    return [query, length]


def test_huge_texts_and_a_hanging_tokenizer_beside_streams(server):
    expected = controls(server, STREAMS, max_tokens=LENGTH)
    huge = [tensor("text_input", HUGE), tensor("max_tokens", 4)]
    with Clients(server, len(STREAMS)) as crowd, ThreadPoolExecutor(4) as strangers:
        good = crowd.ask(STREAMS, max_tokens=LENGTH)
        crowd.wait_until_all_talk()
        server.faults.begin("preprocessing", "hold")
        lines = list(strangers.map(lambda model: line_of(server, huge, model), ["bls"] * 20))
        answers = answers_of(good)
    assert all(
        line.startswith(f"input 'text_input': {len(HUGE)} bytes given, at most ") for line in lines
    )
    assert [answer.error for answer in answers] == [""] * len(STREAMS)
    assert [answer.said for answer in answers] == expected
    assert memory_bytes(server.processes) < 2 << 30


def test_a_full_queue_refuses_while_the_tokenizer_hangs(server):
    present = 8 + QUEUE
    with Clients(server, present) as crowd, server.faults.of("preprocessing", "hold"):
        waiting = crowd.ask([f"prompt {n}" for n in range(present)])
        assert eventually(lambda: metric(server, "tandem_requests_waiting") == present)
        line = refusal(server, "bls", "one more", max_tokens=4)
        assert line.startswith(f"overloaded: 0 sequences are running and {present} waiting")
        # Ids need no tokenizer, but a place they need too.
        ids = [tensor("input_ids", [[5, 6, 7]]), tensor("max_tokens", 4)]
        assert line_of(server, ids).startswith("overloaded: ")
        server.faults.end("preprocessing")
        assert not any(answer.error for answer in answers_of(waiting))


def test_a_request_that_waits_for_the_tokenizer_ends_at_its_time_out(server):
    with Clients(server, CALLS + 2) as crowd, server.faults.of("preprocessing", "hold"):
        held = crowd.ask(STREAMS[: CALLS + 1])
        assert eventually(lambda: metric(server, "tandem_requests_waiting") == CALLS + 1)
        [late] = answers_of(crowd.ask(["late"], timeout=200_000))
        line = "the request took longer than 0.2 s, which is its time-out"
        assert late.error == f"deadline_exceeded: {line}"
        assert eventually(lambda: metric(server, "tandem_requests_waiting") == CALLS + 1)
        server.faults.end("preprocessing")
        assert not any(answer.error for answer in answers_of(held))


def test_clients_that_leave_the_tokenizers_queue_leave_no_trace(server):
    values = {"max_tokens": 4, "end_id": -1, "stream": True}
    with server.faults.of("preprocessing", "hold"):
        for _ in range(3):
            with (
                streaming(server, "a", **values),
                streaming(server, "b", **values),
                streaming(server, "c", **values),
            ):
                assert eventually(lambda: metric(server, "tandem_requests_waiting") == 3)
            assert eventually(lambda: metric(server, "tandem_requests_waiting") == 0)
    assert not ask(server, "still there").error


def test_millions_of_words_are_refused_without_being_read(server):
    words = client.InferInput("stop_words", [1, 1_000_000], "BYTES")
    words.set_data_from_numpy(np.full((1, 1_000_000), b"abc", object))
    made = [*inputs("x", max_tokens=4), words]
    expected = "input 'stop_words': 1000000 words given for a prompt, at most 1024 are taken"
    for model in ("bls", "ensemble"):
        assert line_of(server, made, model) == expected


def test_the_tokenizer_itself_refuses_what_is_too_much(server):
    code, line = decoded(line_of(server, tokenizer_inputs(HUGE), "preprocessing"))
    assert code == "INVALID_ARG"
    assert line.startswith(f"QUERY: {len(HUGE)} bytes given, at most ")
    assert memory_bytes(server.processes) < 2 << 30


def test_logits_that_no_answer_holds_are_refused(server):
    line = refusal(server, "bls", "x", max_tokens=7000, return_generation_logits=True)
    assert line.startswith("input 'return_generation_logits': up to ")
    assert line.endswith("an answer holds at most 67108864; ask for fewer tokens or prompts")


def test_what_the_tokenizer_refuses_is_named_as_the_client_does(server):
    line = refusal(server, "bls", "x" * 200_000, max_tokens=4)
    assert line.startswith("input 'text_input': the first ")


def test_the_text_of_a_prompt_that_came_as_ids_is_shown(server):
    prompt = "def add("
    shown = ask_one(server, "bls", prompt, max_tokens=4, exclude_input_in_output=False)
    assert shown.text.startswith(prompt)
    with client.InferenceServerClient(server.grpc_url) as connection:
        tokenized = connection.infer("preprocessing", tokenizer_inputs(prompt.encode()))
        ids = tensor("input_ids", tokenized.as_numpy("INPUT_ID").tolist())
        for excluded, text in ((False, shown.text), (True, shown.text.removeprefix(prompt))):
            flag = tensor("exclude_input_in_output", excluded)
            [answer] = read(connection.infer("bls", [ids, tensor("max_tokens", 4), flag]))
            assert answer.text == text
