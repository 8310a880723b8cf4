"""Clients can call the models `draft` and `target` directly, without Tandem's loop."""

import os
import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from entries import ask_one, infer_input
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from tandem.contract import engine
from tandem.engines.shared_logits import read_shared_logits

from .conftest import emulated_zero, serving

CONTEXT = list(range(40, 60))
LENGTH = 12
TYPES = {
    engine.EXCLUDE_INPUT_IN_OUTPUT: bool,
    engine.STREAMING: bool,
    engine.RETURN_GENERATION_LOGITS: bool,
    engine.TEMPERATURE: np.float32,
    engine.SEED: np.uint64,
    engine.SHARED_LOGITS_HANDLE: np.uint64,
}
BY_LOGITS = {"temperature": 0.8, "top_p": 1.0, "seed": 3, "use_draft_logits": True}


def request(**values):
    """Return the input tensors of a call."""
    given = {
        "input_ids": CONTEXT,
        "input_lengths": [len(CONTEXT)],
        "request_output_len": [LENGTH],
        "exclude_input_in_output": [True],
    }
    return [
        infer_input(name, np.array([value], TYPES.get(name, np.int32)))
        for name, value in (given | values).items()
    ]


def tokens_of(result):
    return result.as_numpy(engine.OUTPUT_IDS).reshape(-1).tolist()


@pytest.fixture
def client(emulated):
    with grpc.InferenceServerClient(emulated.grpc_url) as connection:
        yield connection


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ({"streaming": [True]}, None, "`decoupled: true`"),
        ({"runtime_top_k": [-1]}, "StatusCode.INVALID_ARGUMENT", ": runtime_top_k"),
        ({"beam_width": [2]}, "StatusCode.UNIMPLEMENTED", ": beam_width"),
    ],
    ids=["stream", "value", "unsupported"],
)
def test_calls_that_an_engine_rejects_have_the_right_status_code(client, wrong, code, message):
    with pytest.raises(InferenceServerException, match=message) as error:
        client.infer("target", request(**wrong))
    assert code in (None, error.value.status())


def test_a_draft_engine_returns_its_logits_or_a_shared_handle(client):
    outputs = (engine.GENERATION_LOGITS, engine.SHARED_LOGITS_HANDLE)
    result = client.infer(
        "draft",
        request(request_output_len=[3], return_generation_logits=[True]),
        outputs=[grpc.InferRequestedOutput(name) for name in outputs],
    )
    sent = result.as_numpy(engine.GENERATION_LOGITS)[0, 0]
    shared = read_shared_logits(result.as_numpy(engine.SHARED_LOGITS_HANDLE), 3)
    assert shared.shape[0] == 3
    assert shared.tolist() == sent.tolist()


def test_drafts_with_an_invalid_logits_handle_are_verified_by_id(client):
    draft = {"draft_input_ids": [41, 42], "temperature": [1.0], "seed": [5]}
    by_ids = tokens_of(client.infer("target", request(**draft)))
    gone = request(**draft, shared_logits_handle=[os.getpid(), 1, 2])
    assert tokens_of(client.infer("target", gone)) == by_ids


def test_pages_of_draft_logits_are_reused(emulated):
    """The number of pages is limited by concurrent drafts, not by rounds."""
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(
            lambda n: ask_one(emulated, "bls", f"def f{n}(", max_tokens=100, **BY_LOGITS), range(32)
        )
    assert all(answer.rounds > 8 for answer in answers)
    assert 0 < pages_of_logits(emulated) <= 8


def pages_of_logits(server):
    """Return the number of shared pages of logits that the server's processes hold open."""
    pages = set()
    for process in server.processes:
        for descriptor in descriptors_of(process):
            with suppress(FileNotFoundError):  # closed after it was listed
                if os.readlink(descriptor) == "/memfd:tandem-logits (deleted)":
                    pages.add(os.stat(descriptor).st_ino)
    return len(pages)


def descriptors_of(process):
    with suppress(FileNotFoundError):
        return [f"/proc/{process}/fd/{name}" for name in os.listdir(f"/proc/{process}/fd")]
    return []


@pytest.mark.heavy
def test_a_decoupled_engine_can_stream_and_works_with_the_loop(client, emulated, tmp_path):
    planned = emulated_zero(tmp_path, engine={"decoupled": True})
    alone = tokens_of(client.infer("target", request(runtime_top_k=[1])))
    arrived = queue.Queue()
    with serving(planned, tmp_path) as decoupled:
        with grpc.InferenceServerClient(decoupled.grpc_url) as connection:
            connection.start_stream(lambda result, error: arrived.put((result, error)))
            connection.async_stream_infer("target", request(runtime_top_k=[1], streaming=[True]))
            answers = [arrived.get(timeout=30) for _ in range(LENGTH)]
        assert [error for _, error in answers] == [None] * LENGTH
        assert np.concatenate([tokens_of(result) for result, _ in answers]).tolist() == alone
        values = {"max_tokens": LENGTH, "end_id": -1}
        expected = ask_one(emulated, "ensemble", "def add(a, b):", **values)
        answer = ask_one(decoupled, "bls", "def add(a, b):", **values)
    assert answer.ids == expected.ids
    assert answer.rounds < LENGTH
